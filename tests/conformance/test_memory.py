"""The memory broker runs the whole suite, in virtual time."""

import pytest

from penstock.testing.conformance import BrokerConformance, Harness


class TestMemory(BrokerConformance):
    @pytest.fixture
    def harness(self) -> Harness:
        return Harness("memory://", virtual=True)


class TestMemoryInRealTime(BrokerConformance):
    """The same on a plain event loop, with time in tenths."""

    @pytest.fixture
    def harness(self) -> Harness:
        return Harness("memory://", second=0.1)
