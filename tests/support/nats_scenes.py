"""What tests on a real NATS server share: topics with messages in them."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from penstock import PubSub
from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.sync.connection import BlockingConnection
from penstock.errors import PenstockError
from penstock.message import Draft, PublishFault


def make(url: str, *topics: str, **options: Any) -> None:
    async def create() -> None:
        async with PubSub(url) as pubsub:
            for topic in topics:
                await pubsub.topic(topic).create(**options)

    asyncio.run(create())


def fill(
    url: str,
    topic: str,
    numbers: Iterable[int],
    *,
    attributes: Mapping[str, str] | None = None,
    ordering_key: str | None = None,
    size: int = 0,
) -> None:
    """Publish each number as data, under an id made of it."""
    drafts = [
        Draft(b"%d" % n + bytes(size), dict(attributes or {}), ordering_key, f"{topic}/{n}")
        for n in numbers
    ]

    async def publish() -> None:
        async with PubSub(url) as pubsub:
            broker = await pubsub.broker()
            for at in range(0, len(drafts), 5000):
                for answer in await broker.publish(topic, drafts[at : at + 5000]):
                    if isinstance(answer, PublishFault):
                        raise answer.error

    asyncio.run(publish())


def stored(url: str, topic: str) -> list[str]:
    """The data of everything in a topic, as text, in order."""

    async def read() -> list[str]:
        async with PubSub(url) as pubsub:
            log = (await pubsub.broker()).log
            assert log is not None
            last = (await log.extent(topic)).last
            return [r.data.decode() async for batch in log.read(topic, 1, last) for r in batch]

    return asyncio.run(read())


def api(url: str, subject: str, body: Any = None, *, may_fail: bool = False) -> dict[str, Any]:
    """An operator's request to JetStream."""
    with BlockingConnection(NatsOptions.of(url)) as connection:
        with suppress(*[PenstockError] if may_fail else []):
            return connection.request(subject, body)
        return {}
