"""What tests of brokers do again and again."""

import asyncio
import contextlib

from penstock.errors import PenstockError


async def stored(pubsub, topic):
    """Everything a topic's log holds."""
    broker = await pubsub.broker()
    extent = await broker.log.extent(topic)
    return [
        record
        async for batch in broker.log.read(topic, extent.first, extent.last)
        for record in batch
    ]


async def publish_when_connected(topic):
    for _ in range(50):
        with contextlib.suppress(PenstockError):
            await topic.publish_message(b"after")
            return
        await asyncio.sleep(0.2)
    raise AssertionError("never connected again")
