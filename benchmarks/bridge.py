"""The bridge on SQLite and PostgreSQL, beside loops written by hand."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select, text, update
from tests.support.servers import PostgresServer

from benchmarks.measure import Figures, Row, Stopwatch, interleaved, ratios, table
from penstock import Bridge, Draft
from penstock.bridge.envelope import build
from penstock.broker import Broker
from penstock.message import Settlement, Verb
from penstock.transactional import Database, Outbox, Relay
from penstock.transactional.outbox_table import table as rows

SENT = int(os.environ.get("BENCH_SENT_ROWS", "1000000"))
REPEATS = 3
BATCH = 500
_PAYLOAD = {"id": 1, "text": "x" * 1000}
_BY_HAND, _BY_US = 200, 5000

own = MetaData()
effects = Table("effects", own, Column("id", Integer, primary_key=True), Column("event", String))
seen = Table("seen", own, Column("event", String, primary_key=True), Column("status", String))


@dataclass
class Scene:
    """Two apps with one database."""

    database: Database
    outbox: Outbox
    api: Bridge
    worker: Bridge

    async def broker(self) -> Broker:
        return await self.api.connection.broker()

    def drafts(self, count: int, bridge: Bridge, keys: int = 0) -> list[Draft]:
        """Of so many resources in turn, each in its own order; of none, and in no order."""
        subject = bridge.names.source_subject
        made = (
            build(producer="x", event_type="user.created", payload=_PAYLOAD) for _ in range(count)
        )
        return [
            one.draft(subject, ordering_key=f"User/{n % keys}" if keys else "")
            for n, one in enumerate(made)
        ]

    async def add(self, count: int, keys: int = 0) -> None:
        async with self.database.transaction() as connection:
            drafts = self.drafts(count, self.api, keys)
            await self.outbox.add(connection, self.api.names.stream_name, drafts)

    async def tell(self, count: int) -> None:
        """Events for the worker, past the outbox."""
        broker, drafts = await self.broker(), self.drafts(count, self.api)
        for at in range(0, count, BATCH):
            await broker.publish(self.api.names.stream_name, drafts[at : at + BATCH])

    # Publishing.

    async def relayed(self, count: int = _BY_US, keys: int = 0) -> float:
        await self.add(count, keys)
        relay = Relay(self.database, await self.api.connection.pubsub(), batch=BATCH)
        watch = Stopwatch()
        while await relay.step():
            pass
        return watch.per(count)

    async def relayed_by_hand(self) -> float:
        await self.add(_BY_HAND)
        broker, c = await self.broker(), rows.c
        watch = Stopwatch()
        for _ in range(_BY_HAND):
            oldest = select(rows).where(c.state == "pending").order_by(c.id).limit(1)
            async with self.database.transaction() as connection:
                row = (await connection.execute(oldest)).one()
            draft = Draft.of(row.data, None, None, row.message_id, row.subject)
            await broker.publish(row.topic, [draft])
            async with self.database.transaction() as connection:
                await connection.execute(
                    update(rows).where(c.id == row.id).values(state="published", published_at=1.0)
                )
        return watch.per(_BY_HAND)

    # Receiving.

    async def received(self) -> float:
        await self.tell(_BY_US)
        left, done = _BY_US, asyncio.Event()

        async def handle(event: Any, connection: Any) -> None:
            nonlocal left
            await connection.execute(insert(effects), {"event": event.event_id})
            left -= 1
            if left == 0:
                done.set()

        watch = Stopwatch()
        async with self.worker.consumer(handle, batch_size=BATCH):
            await done.wait()
        return watch.per(_BY_US)

    async def received_by_hand(self) -> float:
        """Note it, handle it, note that it was handled: three transactions, then the ack."""
        await self.tell(_BY_HAND)
        broker, name = await self.broker(), self.worker.names.durable
        left = _BY_HAND
        watch = Stopwatch()
        while left:
            got = await broker.pull(name, max_messages=25, max_bytes=2**20, wait=1.0)
            for delivery in got:
                event = delivery.record.message_id
                async with self.database.transaction() as connection:
                    await connection.execute(insert(seen), {"event": event, "status": "processing"})
                async with self.database.transaction() as connection:
                    await connection.execute(insert(effects), {"event": event})
                async with self.database.transaction() as connection:
                    change = update(seen).where(seen.c.event == event)
                    await connection.execute(change.values(status="processed"))
                await broker.settle(name, [Settlement(delivery.ack_id, Verb.ACK)])
                left -= 1
        return watch.per(_BY_HAND)

    # From commit to handler.

    async def latencies(self, count: int = 200) -> list[float]:
        """Seconds from when the commit has returned to when the handler begins."""
        took: list[float] = []
        handled = 0.0
        arrived = asyncio.Event()

        async def handle(_event: Any, _connection: Any) -> None:
            nonlocal handled
            handled = time.perf_counter()
            arrived.set()

        async with self.worker.consumer(handle):
            for n in range(count + 20):
                arrived.clear()
                async with self.database.transaction() as connection:
                    payload = {**_PAYLOAD, "id": n}
                    await self.api.publish(
                        event_type="user.created", payload=payload, connection=connection
                    )
                committed = time.perf_counter()
                await arrived.wait()
                # The handler may have been quicker than we were to see our own commit.
                took.append(max(0.0, handled - committed))
                # Until what follows an event, its marks, is over: some twenty events a second.
                await asyncio.sleep(0.03)
        return sorted(took[20:])

    async def fill_with_sent(self, count: int) -> None:
        """Rows that were published, as many as a table may have that nobody cleans."""
        statement = text(
            "INSERT INTO penstock_outbox (topic, message_id, data, attributes, created_at, state, "
            "attempts, next_attempt_at, fence, lease_until, published_at) "
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count) "
            "SELECT 'old', 'old-' || i, :data, '{}', 1, 'published', 1, 0, 0, 0, 1 FROM n"
        )
        async with self.database.transaction() as connection:
            await connection.execute(statement, {"data": b"x" * 1000, "count": count})


async def main() -> bool:
    kept = True
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        PostgresServer(fsync=True) as postgres,
    ):
        addresses = {"SQLite": f"sqlite:///{folder}/app.db", "PostgreSQL": postgres.url()}
        for number, (name, url) in enumerate(addresses.items()):
            found = await _measure(f"local://{folder}/broker", url, number, name)
            table(f"The bridge on {name}, 1 KB events, every write synced", found)
            kept &= all(row.kept is not False for row in found)
    return kept


async def _measure(broker: str, url: str, number: int, name: str) -> list[Row]:
    here, there = f"api{number}", f"worker{number}"
    options: dict[str, Any] = {"url": broker, "database_url": url, "stream_name": f"bench{number}"}
    async with Database(url) as database:
        await database.create_tables(own)
        api = Bridge(here, there, use_outbox=True, relay=False, **options)
        worker = Bridge(there, here, use_inbox=True, **options)
        async with api, worker:
            scene = Scene(database, Outbox(database), api, worker)
            relay = await interleaved(
                REPEATS,
                by_hand=scene.relayed_by_hand,
                ours=scene.relayed,
                many=partial(scene.relayed, keys=1000),
                one=partial(scene.relayed, _BY_HAND, keys=1),
            )
            await _drain(scene)
            inbox = await interleaved(REPEATS, by_hand=scene.received_by_hand, ours=scene.received)
            await scene.fill_with_sent(SENT)
            full = await interleaved(REPEATS, ours=scene.relayed)
            await _drain(scene)
        async with (
            Bridge(here, there, use_outbox=True, **options) as api,
            Bridge(there, here, use_inbox=True, **options) as worker,
        ):
            took = await Scene(database, Outbox(database), api, worker).latencies()
    slower = ratios(full["ours"], relay["ours"])
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    return [
        _at_least("relay, beside a row at a time", relay, 5),
        _at_least("the same, events of 1,000 resources", relay, 5, "many"),
        _at_least("the same, events of one resource", relay, 1, "one"),
        Row(
            what=f"relay with {SENT:,} sent rows, beside none",
            value=f"{statistics.median(slower):5.2f} x the time",
            spread=f"{slower[0]:.2f} to {slower[-1]:.2f}",
            promise="at most 1.5 x",
            kept=statistics.median(slower) <= 1.5,
        ),
        _at_least("consumer with inbox, beside 3 transactions", inbox, 3),
        Row(
            what="from commit to handler, light load",
            value=f"p50 {p50 * 1000:.1f} ms",
            spread=f"p99 {p99 * 1000:.1f} ms",
            promise="p50 at most 10 ms" if name == "PostgreSQL" else "",
            kept=p50 <= 0.010 if name == "PostgreSQL" else None,
        ),
    ]


async def _drain(scene: Scene) -> None:
    """What was relayed is acked, so that nothing waits for the next measure."""
    broker, name = await scene.broker(), scene.worker.names.durable
    while (await broker.admin.describe_subscription(name)).backlog:
        got = await broker.pull(name, max_messages=BATCH, max_bytes=2**24, wait=0.5)
        await broker.settle(name, [Settlement(one.ack_id, Verb.ACK) for one in got])


def _at_least(what: str, figures: dict[str, Figures], least: float, ours: str = "ours") -> Row:
    values = ratios(figures["by_hand"], figures[ours])
    rate = 1 / figures[ours].median
    middle = statistics.median(values)
    return Row(
        what=what,
        value=f"{middle:5.1f} x  ({rate:,.0f} /s)",
        spread=f"{values[0]:.1f} to {values[-1]:.1f}",
        promise=f"at least {least:g} x",
        kept=middle >= least,
    )
