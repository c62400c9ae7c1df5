"""The outbox and its relay on SQLite and PostgreSQL, beside the same broker used directly."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.servers import PostgresServer

from benchmarks.measure import Figures, Row, Stopwatch, interleaved, table
from penstock import Draft, PubSub
from penstock.transactional import Database, Outbox, Relay

PAYLOAD = bytes(256)
BATCH = 500
REPEATS = 3


@asynccontextmanager
async def empty_outbox(url: str) -> AsyncIterator[tuple[Database, Outbox]]:
    async with Database(url) as database:
        outbox = Outbox(database)
        await outbox.create()
        yield database, outbox


class Ways:
    """Each takes seconds a message."""

    def __init__(self, pubsub: PubSub, database: Database, outbox: Outbox) -> None:
        self.pubsub, self.database, self.outbox = pubsub, database, outbox

    async def add_one_at_a_time(self) -> float:
        return await self._add(300, 1)

    async def add_hundreds(self) -> float:
        return await self._add(10_000, 100)

    async def relay_without_keys(self) -> float:
        return await self._relay([Draft.of(PAYLOAD) for _ in range(5000)])

    async def relay_a_thousand_keys(self) -> float:
        return await self._relay([Draft.of(PAYLOAD, None, f"key{n % 1000}") for n in range(5000)])

    async def broker_directly(self) -> float:
        broker = await self.pubsub.broker()
        watch = Stopwatch()
        for _ in range(10):
            await broker.publish("orders", [Draft.of(PAYLOAD) for _ in range(BATCH)])
        return watch.per(10 * BATCH)

    async def _add(self, rows: int, a_transaction: int) -> float:
        watch = Stopwatch()
        for _ in range(rows // a_transaction):
            async with self.database.transaction() as connection:
                drafts = [Draft.of(PAYLOAD) for _ in range(a_transaction)]
                await self.outbox.add(connection, "orders", drafts)
        took = watch.per(rows)
        await self._relay([])
        return took

    async def _relay(self, drafts: Sequence[Draft]) -> float:
        """Publish everything there is; timed for `drafts`."""
        async with self.database.transaction() as connection:
            await self.outbox.add(connection, "orders", drafts)
        relay = Relay(self.database, self.pubsub, batch=BATCH)
        watch = Stopwatch()
        while await relay.step():
            pass
        took = watch.per(len(drafts) or 1)
        await self.outbox.clean(0)
        return took


async def main() -> bool:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        PostgresServer(fsync=True) as postgres,
    ):
        sqlite = f"sqlite:///{Path(folder)}/app.db"
        for name, url in (("SQLite", sqlite), ("PostgreSQL", postgres.url())):
            broker = f"local://{folder}/broker"
            async with PubSub(broker) as pubsub, empty_outbox(url) as (database, outbox):
                if not await pubsub.topic("orders").exists():
                    await pubsub.topic("orders").create(message_retention=60)
                ways = Ways(pubsub, database, outbox)
                figures = await interleaved(
                    REPEATS,
                    broker=ways.broker_directly,
                    ones=ways.add_one_at_a_time,
                    hundreds=ways.add_hundreds,
                    keyless=ways.relay_without_keys,
                    keyed=ways.relay_a_thousand_keys,
                )
            table(f"The outbox on {name}, JetStream with every write synced", _rows(figures))
    return True


def _rows(figures: dict[str, Figures]) -> list[Row]:
    names = {
        "ones": "added, one a transaction",
        "hundreds": "added, 100 a transaction",
        "keyless": "relayed, without keys",
        "keyed": "relayed, 1000 keys",
        "broker": "the broker alone, 500 a call",
    }
    return [_rate(what, figures[name]) for name, what in names.items()]


def _rate(what: str, of: Figures) -> Row:
    rates = sorted(1 / seconds for seconds in of.seconds)
    return Row(
        what=what,
        value=f"{statistics.median(rates):,.0f} /s",
        spread=f"{rates[0]:,.0f} to {rates[-1]:,.0f}",
    )
