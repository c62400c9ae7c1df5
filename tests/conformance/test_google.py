"""Google's adapter runs the suite over our emulator: on the memory broker, in time that passes
twenty times as fast, because Google's shortest deadline is ten seconds."""

from collections.abc import Iterator

import pytest

from penstock.testing.conformance import BrokerConformance, Harness
from penstock.testing.emulator import EmulatorInThread

SPEED = 20


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with EmulatorInThread(project="project-one", speed=SPEED) as emulator:
        yield emulator.address


class TestGoogleOverTheEmulator(BrokerConformance):
    @pytest.fixture
    def harness(self, address: str) -> Harness:
        return Harness(f"pubsub://project-one?emulator={address}", second=10, speed=SPEED)
