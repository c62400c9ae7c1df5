"""Brokers that cannot carry jobs are told so before anything is made."""

import pytest

from penstock import Capabilities, PubSub
from penstock.brokers.memory import MemoryBroker
from penstock.errors import UnimplementedError
from penstock.jobs import load_settings
from penstock.jobs.messaging.client import PubSubClient
from penstock.testing import VirtualClock


class Modest(MemoryBroker):
    name = "modest"
    capabilities = Capabilities(filters=True)


async def test_all_that_a_broker_lacks_for_jobs_is_said_at_once_and_nothing_is_made():
    async with PubSub(broker=Modest(VirtualClock())) as pubsub:
        with pytest.raises(UnimplementedError, match="not claim retry_policy, seek or replay; use"):
            await PubSubClient(pubsub, load_settings(environ={})).provision()
        assert not await (await pubsub.broker()).admin.list_topics()
