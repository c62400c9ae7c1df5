"""The behaviours every broker must show, as tests that any broker can run.

    from penstock.testing.conformance import BrokerConformance, Harness

    class TestMyBroker(BrokerConformance):
        @pytest.fixture
        def harness(self):
            return Harness("mybroker://…")

A behaviour that needs something the broker's capabilities do not claim is skipped; what they
claim is tested.
"""

from penstock.testing.conformance.administering import Administering
from penstock.testing.conformance.dead_letters import DeadLetters
from penstock.testing.conformance.exactly_once import ExactlyOnce
from penstock.testing.conformance.filtering import Filtering
from penstock.testing.conformance.harness import Harness, Scene, behaviour
from penstock.testing.conformance.ordering import Ordering
from penstock.testing.conformance.publishing import Publishing
from penstock.testing.conformance.replaying import Replaying
from penstock.testing.conformance.settling import Settling
from penstock.testing.conformance.streaming import StreamingPull
from penstock.testing.conformance.subjects import Subjects


class BrokerConformance(
    Administering,
    DeadLetters,
    ExactlyOnce,
    Filtering,
    Ordering,
    Publishing,
    Replaying,
    Settling,
    StreamingPull,
    Subjects,
):
    """All families. Subclass it and give it a `harness` fixture."""


__all__ = ["BrokerConformance", "Harness", "Scene", "behaviour"]
