"""The setting these tests share: a database with an outbox and a table of its own, and a topic."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, func, select, update

from penstock import Backoff, Draft, PubSub
from penstock.broker import Broker
from penstock.message import Record
from penstock.transactional import Database, Outbox, Relay
from penstock.transactional.outbox_table import bundles, table


@dataclass
class Scene:
    database: Database
    outbox: Outbox
    pubsub: PubSub

    def relay(self, **options: Any) -> Relay:
        """One that is quick about everything."""
        defaults = {"poll": 0.02, "retry": Backoff(initial=0.01, maximum=0.05)}
        return Relay(self.database, self.pubsub, outbox=self.outbox, **{**defaults, **options})

    async def add(
        self, *drafts: Draft, topic: str = "orders", after: float = 0.0
    ) -> tuple[str, ...]:
        return await self.add_to(self.outbox, *drafts, topic=topic, after=after)

    async def add_to(
        self,
        outbox: Outbox,
        *drafts: Draft,
        way: str = "add",
        topic: str = "orders",
        **options: Any,
    ) -> Any:
        """By `add`, which makes a row of each, or by `add_new`, which may make one of all."""
        async with self.database.transaction() as connection:
            return await getattr(outbox, way)(connection, topic, drafts, **options)

    async def rows(self) -> list[int]:
        """How many there are: bundles, and rows of messages."""
        async with self.database.transaction(reading=True) as connection:
            counts = [select(func.count()).select_from(one) for one in (bundles, table)]
            return [(await connection.execute(count)).scalar_one() for count in counts]

    async def time_passes(self) -> None:
        """Whatever waits is due, and every claim has ended."""
        due = case((table.c.next_attempt_at > 0, 1.0), else_=0.0)
        async with self.database.transaction() as connection:
            await connection.execute(update(table).values(next_attempt_at=due, lease_until=0))
            await connection.execute(update(bundles).values(lease_until=0))

    async def column(self, name: str, message_id: str) -> Any:
        """What the row of a message says there."""
        query = select(table.c[name]).where(table.c.message_id == message_id)
        async with self.database.transaction(reading=True) as connection:
            return (await connection.execute(query)).scalar_one()

    async def stored(self, topic: str = "orders") -> list[Record]:
        return await stored(await self.pubsub.broker(), topic)

    async def drained(self, within: float = 240.0) -> None:
        """Wait until nothing is pending."""

        async def empty() -> bool:
            return await self.outbox.pending() == 0

        await until(empty, within)


@asynccontextmanager
async def outbox_on(url: str, broker: str | Broker = "memory://") -> AsyncIterator[Scene]:
    """An empty outbox, and topic 'orders', which keeps what is published."""
    client = PubSub(broker) if isinstance(broker, str) else PubSub(broker=broker)
    async with client as pubsub, Database(url) as database:
        if not await pubsub.topic("orders").exists():
            await pubsub.topic("orders").create(message_retention=3600)
        outbox = Outbox(database)
        await outbox.create()
        yield Scene(database, outbox, pubsub)


async def stored(broker: Broker, topic: str = "orders") -> list[Record]:
    """What a topic holds, in order."""
    assert broker.log is not None
    extent = await broker.log.extent(topic)
    batches = broker.log.read(topic, extent.first, extent.last)
    return [record async for batch in batches for record in batch]


async def until(condition: Callable[[], Awaitable[bool]], within: float = 240.0) -> None:
    async with asyncio.timeout(within):
        # The database has no event to wait for.
        while not await condition():
            await asyncio.sleep(0.01)


def drafts(count: int, key: str | None = None, start: int = 0) -> list[Draft]:
    """Numbered, in data and message id."""
    return [
        Draft.of(b"%d" % n, {"n": str(n)}, key, f"{key or 'm'}-{n}")
        for n in range(start, start + count)
    ]


def ids(records: Sequence[Record]) -> list[str]:
    return [record.message_id for record in records]
