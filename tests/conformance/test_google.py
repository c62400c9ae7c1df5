"""Google's adapter runs the suite over our emulator, in front of two brokers.

Time passes twenty times as fast, because Google's shortest deadline is ten seconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.clock import Clock
from penstock.testing.conformance import BrokerConformance, Harness
from penstock.testing.emulator import EmulatorInThread

SPEED = 20


@pytest.fixture(scope="module")
def in_memory() -> Iterator[str]:
    with EmulatorInThread(project="project-one", speed=SPEED) as emulator:
        yield f"pubsub://project-one?emulator={emulator.address}"


@contextmanager
def on_jetstream(folder, **options) -> Iterator[str]:
    options |= {"broker": f"local://{folder}/data", "folder": folder, "clock": Clock()}
    with EmulatorInThread(project="project-one", **options) as emulator:
        yield f"pubsub://project-one?emulator={emulator.address}"


@pytest.fixture(scope="module")
def durable(tmp_path_factory) -> Iterator[str]:
    with on_jetstream(tmp_path_factory.mktemp("durable"), speed=SPEED) as url:
        yield url


class TestGoogleInMemory(BrokerConformance):
    @pytest.fixture
    def harness(self, in_memory: str) -> Harness:
        # Google's shortest expiration is a day.
        return Harness(in_memory, second=10, speed=SPEED, lacks=("expiration",))


class OnAServerOfItsOwnTime(Harness):
    """The NATS server behind it has the wall's time, whatever passes here."""

    def clock(self) -> Clock:
        return Clock()


# The first two JetStream does not have; the others it has, in its own time.
LACKS = ("detaching", "outlives_topic", "retry_policy", "delayed_nack", "expiration")


class TestGoogleDurable(BrokerConformance):
    @pytest.fixture
    def harness(self, durable: str) -> Harness:
        return OnAServerOfItsOwnTime(durable, second=10, speed=SPEED, lacks=LACKS)

    @pytest.fixture
    def in_step(self, tmp_path) -> Iterator[Harness]:
        with on_jetstream(tmp_path) as url:
            yield Harness(url, second=10, lacks=LACKS)

    def test_an_expired_message_comes_back_before_later_ones_of_its_key(self, in_step):
        """An ordered subscription knows how long the server lends it what it has fetched ahead:
        where its time passes faster than the server's it is never sure of that."""
        super().test_an_expired_message_comes_back_before_later_ones_of_its_key(in_step)

    def test_an_ack_id_that_expired_is_invalid(self, in_step):
        """A pull of what is delivered exactly once counts on the server's signs of life, which
        come in the server's time."""
        super().test_an_ack_id_that_expired_is_invalid(in_step)
