"""Messages of which the server is being told that they are done."""

import asyncio

import pytest

from penstock.brokers.nats.confirming import Confirming
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.config import SubscriptionConfig
from penstock.message import Delivery, Record
from penstock.testing import settled

CONSUMER = Consumer("orders", "billing", SubscriptionConfig(name="billing", topic="orders"))


def delivery(attempt):
    ack_id = f"$JS.ACK.orders.billing.{attempt}.1.{attempt}.1700000000000000000.0"
    return Delivery(Record(1, "m", b"x", {}, None, "orders", 0), ack_id, attempt, 10.0)


def done(attempt):
    return [(delivery(attempt).ack_id.encode(), b"+ACK")]


async def looked_at(confirming):
    looking = asyncio.ensure_future(confirming.without_done(CONSUMER, [delivery(3)]))
    await settled()
    return looking


@pytest.mark.parametrize("failed", [False, True])
async def test_what_comes_again_waits_for_what_the_server_says(failed):
    confirming = Confirming()
    try:
        with confirming.of(CONSUMER, done(1)):
            looking = await looked_at(confirming)
            assert not looking.done()
            if failed:
                raise ConnectionError
    except ConnectionError:
        pass
    assert await looking == ([delivery(3)] if failed else [])
    assert not confirming._sequences


async def test_who_is_told_again_meanwhile_is_waited_for_until_the_last():
    confirming = Confirming()
    first, second = (confirming.of(CONSUMER, done(attempt)) for attempt in (1, 2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    looking = await looked_at(confirming)
    assert not looking.done()
    second.__exit__(None, None, None)
    assert await looking == []
    assert not confirming._sequences
