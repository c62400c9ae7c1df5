"""The setting most tests share: a client in virtual time, a topic, a subscription."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock import Message, PubSub, Subscription, Topic
from penstock.message import Delivery, Record
from penstock.testing import VirtualClock


@asynccontextmanager
async def orders(**options: Any) -> AsyncIterator[tuple[Topic, Subscription]]:
    """Topic 'orders' with subscription 'billing', in memory."""
    async with PubSub(clock=VirtualClock()) as pubsub:
        topic = await pubsub.topic("orders").create()
        yield topic, await topic.subscription("billing", **options).create()


def now() -> float:
    return asyncio.get_running_loop().time()


def cancel_all_others() -> None:
    """As `asyncio.run` does when its program ends."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def publish(topic: Topic, count: int, **options: Any) -> list[str]:
    return [await topic.publish_message(b"%d" % n, **options) for n in range(count)]


def loans(*ack_ids: str, key: str | None = None) -> list[Message]:
    """Messages that nobody delivered; the number in an ack id is the sequence."""
    records = [Record(int(a.lstrip("a")), a, b"", {}, key, "orders", 0) for a in ack_ids]
    deliveries = [Delivery(record, record.message_id, 1, 10.0) for record in records]
    return Message.of(deliveries, None, 0.0)
