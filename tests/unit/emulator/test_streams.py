"""How a stream ends, whatever its client does in that moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from penstock import Draft
from penstock.brokers.memory import MemoryBroker
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.emulator.receiving.acks import AckIds
from penstock.emulator.receiving.desks import Desk
from penstock.emulator.receiving.returns import Returns
from penstock.emulator.receiving.stream import Stream
from penstock.errors import InvalidArgumentError
from penstock.googlepubsub.messages import StreamingPullRequest
from penstock.testing import VirtualClock

SUB = "projects/p/subscriptions/sub"
FIRST = StreamingPullRequest(subscription=SUB, stream_ack_deadline_seconds=600)


class Client:
    """One that is written to and then is gone: the write fails, and the call is cancelled."""

    def __init__(self) -> None:
        self.is_written_to = asyncio.Event()
        self.is_gone = asyncio.Event()

    async def send_initial_metadata(self, metadata: Any) -> None:
        pass

    async def write(self, message: Any) -> None:
        self.is_written_to.set()
        await self.is_gone.wait()
        raise ConnectionError("nobody there")


async def silence() -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield FIRST


async def make() -> tuple[MemoryBroker, Desk, Returns, Stream]:
    clock = VirtualClock()
    broker = MemoryBroker(clock)
    await broker.admin.create_topic(TopicConfig(name="topic"))
    config = SubscriptionConfig(name="sub", topic="topic", ack_deadline=600)
    await broker.admin.create_subscription(config)
    await broker.publish("topic", [Draft.of(b"x")] * 5)
    desk, returns = Desk(config, clock), Returns(broker)
    return broker, desk, returns, Stream(broker, AckIds(""), desk, returns, FIRST)


async def leased(broker: MemoryBroker) -> int:
    return (await broker.admin.describe_subscription("sub")).leased


@pytest.mark.parametrize("moments", range(8))
async def test_a_client_that_goes_away_in_the_middle_of_a_write_keeps_nothing(moments):
    broker, desk, returns, stream = await make()
    client = Client()
    running = asyncio.ensure_future(stream.run(FIRST, silence(), client))
    await client.is_written_to.wait()
    assert await leased(broker) == 5
    client.is_gone.set()
    for _ in range(moments):
        await asyncio.sleep(0)
    running.cancel()
    with suppress(ConnectionError, asyncio.CancelledError):
        await running
    await returns.settled()
    assert (await leased(broker), desk.streams) == (0, 0)


async def test_a_client_that_is_told_of_its_mistake_keeps_what_it_has():
    async def mistaken() -> AsyncIterator[Any]:
        await client.is_written_to.wait()
        yield FIRST

    broker, desk, returns, stream = await make()
    client = Client()
    with pytest.raises(InvalidArgumentError):
        await stream.run(FIRST, mistaken(), client)
    await returns.settled()
    assert (await leased(broker), desk.streams) == (5, 0)
