"""Where subscriptions are, and what is remembered of them."""

import asyncio
from types import SimpleNamespace

import pytest

from penstock.brokers.nats.catalogue import Catalogue
from penstock.config import SubscriptionName
from penstock.testing import settled

BY_NAME, BY_ADDRESS = "billing", SubscriptionName("billing", "orders")


class Server:
    """One stream with one consumer, whose ack deadline somebody else may change."""

    options = SimpleNamespace(topics=())

    def __init__(self):
        self.ack_wait = 30

    async def request(self, subject, body=None, *, missing=None):
        if subject == "STREAM.NAMES":
            return {"streams": ["orders"], "total": 1}
        assert subject == "CONSUMER.INFO.orders.billing"
        config = {"durable_name": "billing", "ack_wait": self.ack_wait * 10**9}
        return {"stream_name": "orders", "name": "billing", "config": config}


@pytest.mark.parametrize("first", [BY_NAME, BY_ADDRESS])
@pytest.mark.parametrize("then", [BY_NAME, BY_ADDRESS])
async def test_what_somebody_changes_is_noticed_however_it_was_found(first, then):
    server = Server()
    catalogue = Catalogue(server)
    await catalogue.consumer(first)
    server.ack_wait = 60
    await asyncio.sleep(6)
    consumer = await catalogue.consumer(then)
    for _ in range(2):  # It is looked at in passing, and from then on.
        catalogue.look_again(then)
        await settled()
        await asyncio.sleep(6)
    assert catalogue.latest(consumer).config.ack_deadline == 60
    assert (await catalogue.consumer(then)).config.ack_deadline == 60
