"""Changing options while the stream runs."""

import asyncio

import pytest

from penstock import (
    FlowControl,
    Message,
    MessageStream,
    Streaming,
    SubscriberOptions,
)
from penstock.errors import (
    InvalidArgumentError,
)
from penstock.testing import settled
from tests.support.scenes import orders, publish


async def test_options_change_while_running():
    async with orders(flow_control=FlowControl(max_messages=1)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 10)
        await settled()
        assert len(received) == 1
        sub.set_options(flow_control=FlowControl(max_messages=4))
        await settled()
        assert len(received) == 4
        sub.set_options(
            flow_control=FlowControl(max_messages=2), streaming=Streaming(max_streams=1)
        )
        assert sub.stream is not None
        assert sub.stream.statistics().pulls == 1
        received[0].ack()
        await settled()
        assert len(received) == 4
        for message in received:
            message.ack()
        await settled()
        assert len(received) == 6


async def test_a_deadline_of_the_streams_own_replaces_the_subscriptions():
    async with orders(ack_deadline=10) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.set_options(ack_deadline=100)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(95)
        assert len(received) == 1
        await asyncio.sleep(10)
        assert len(received) == 2


async def test_ordering_can_be_switched_off_and_on_while_messages_wait():
    async with orders() as (topic, sub):
        received: list[Message] = []
        sub.set_options(message_ordering=True)
        sub.on("message", received.append)
        sub.open()
        for _ in range(5):
            await topic.publish_message(b"x", ordering_key="key")
        await settled()
        assert len(received) == 1
        sub.set_options(message_ordering=False)
        await settled()
        assert len(received) == 5
        sub.set_options(message_ordering=True)
        for message in received:
            message.ack()
        await settled()
        assert (await sub.describe()).backlog == 0


async def test_unknown_options_are_refused_with_the_known_ones():
    async with orders() as (_, sub):
        with pytest.raises(InvalidArgumentError, match=r"max_msgs.*flow_control"):
            sub.set_options(max_msgs=5)
        with pytest.raises(InvalidArgumentError, match="filter"):
            sub.set_options(filter="attributes:a")
        with pytest.raises(InvalidArgumentError, match="flow_control"):
            sub.set_options(flow_control=5)
        stream = MessageStream(sub, SubscriberOptions())
        with pytest.raises(InvalidArgumentError, match="colour"):
            stream.set_options(colour="red")
