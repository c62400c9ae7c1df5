"""A broker that claims nothing: every refusal, and everything the client does instead."""

import pytest

from penstock.testing.conformance import BrokerConformance, Harness
from tests.support.fakes import ModestBroker


class TestModest(BrokerConformance):
    @pytest.fixture
    def harness(self) -> Harness:
        async def connect(clock):
            return ModestBroker(clock)

        return Harness(connect=connect, virtual=True)
