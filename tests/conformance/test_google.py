"""Google's adapter runs the suite over our emulator, in front of two brokers.

Time passes twenty times as fast, because Google's shortest deadline is ten seconds.
"""

from collections.abc import Iterator

import pytest

from penstock.clock import Clock
from penstock.testing.conformance import BrokerConformance, Harness
from penstock.testing.emulator import EmulatorInThread

SPEED = 20


@pytest.fixture(scope="module")
def in_memory() -> Iterator[str]:
    with EmulatorInThread(project="project-one", speed=SPEED) as emulator:
        yield f"pubsub://project-one?emulator={emulator.address}"


@pytest.fixture(scope="module")
def durable(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("durable")
    options = {"broker": f"local://{folder}/data", "folder": folder, "clock": Clock()}
    with EmulatorInThread(project="project-one", speed=SPEED, **options) as emulator:
        yield f"pubsub://project-one?emulator={emulator.address}"


class TestGoogleInMemory(BrokerConformance):
    @pytest.fixture
    def harness(self, in_memory: str) -> Harness:
        # Google's shortest expiration is a day.
        return Harness(in_memory, second=10, speed=SPEED, lacks=("expiration",))


class OnAServerOfItsOwnTime(Harness):
    """The NATS server behind it has the wall's time, whatever passes here."""

    def clock(self) -> Clock:
        return Clock()


class TestGoogleDurable(BrokerConformance):
    @pytest.fixture
    def harness(self, durable: str) -> Harness:
        # The first two JetStream does not have; the others it has, in its own time.
        lacks = ("detaching", "outlives_topic", "retry_policy", "delayed_nack")
        lacks += ("expiration",)
        return OnAServerOfItsOwnTime(durable, second=10, speed=SPEED, lacks=lacks)
