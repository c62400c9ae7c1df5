"""The behaviours every broker must show, as tests that any broker can run.

    from penstock.testing.conformance import BrokerConformance, Harness

    class TestMyBroker(BrokerConformance):
        @pytest.fixture
        def harness(self):
            return Harness(connect=MyBroker.open)     # called with a clock, or
            return Harness("mybroker://…")            # by its address, if it is registered

What the broker's capabilities claim is tested; a behaviour that needs something they do not claim
is skipped, and the refusal is tested instead.
"""

from penstock.testing.conformance.administering import Administering
from penstock.testing.conformance.changing import Changing
from penstock.testing.conformance.claims import Claims
from penstock.testing.conformance.contract import Contract
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
    Changing,
    Claims,
    Contract,
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
