"""A bridge whose processes end as a power cut would, and what it must leave behind.

Two apps share a database. `orders` are written in the transaction that publishes their event;
`effects` are written by the handler, and nothing keeps a second one of an event out but the bridge.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select

from penstock import Bridge, PubSub
from penstock.transactional import Database, Outbox, Relay

RELAY_STEPS = ("claimed", "publishing", "published", "before-mark", "marking", "marked")
CONSUMER_STEPS = ("marked", "handled", "committed", "answered")
# Of a handler without a connection, whose effect is elsewhere.
APART_STEPS = ("taken", "handled", "committed", "answered")
_WITHIN = 60.0
_LEASE = 0.5

own = MetaData()
orders = Table("orders", own, Column("id", String(80), primary_key=True))
effects = Table("effects", own, Column("id", Integer, primary_key=True), Column("event", String))


@dataclass(frozen=True)
class Place:
    """Where everything is; a forked process makes its own connections to it."""

    broker: str
    database: str

    def api(self, **options: Any) -> Bridge:
        return self._bridge("api", "worker", use_outbox=True, **options)

    def worker(self, **options: Any) -> Bridge:
        # Kills count as deliveries, and none of these events may be given up for that.
        patience = {"ack_wait": 1.0, "max_deliver": 100_000}
        return self._bridge("worker", "api", use_inbox=True, **{**patience, **options})

    def _bridge(self, here: str, there: str, **options: Any) -> Bridge:
        return Bridge(here, there, url=self.broker, database_url=self.database, **options)


# What must hold.


def faults(
    committed: Collection[str], rolled_back: Collection[str], seen: Sequence[str]
) -> list[str]:
    """What is wrong with the effects that are there; nothing, if the bridge keeps its word."""
    times = Counter(seen)
    found = [f"lost: {one}" for one in sorted(set(committed) - times.keys())]
    found += [f"{number} times: {one}" for one, number in sorted(times.items()) if number > 1]
    found += [f"rolled back: {one}" for one in sorted(times.keys() & set(rolled_back))]
    strangers = times.keys() - set(committed) - set(rolled_back)
    return found + [f"never published: {one}" for one in sorted(strangers)]


async def effects_and_orders(place: Place) -> tuple[list[str], set[str]]:
    async with Database(place.database) as database:
        async with database.transaction(reading=True) as connection:
            seen = [
                str(one) for one in (await connection.execute(select(effects.c.event))).scalars()
            ]
            kept = {str(one) for one in (await connection.execute(select(orders.c.id))).scalars()}
    return seen, kept


# Processes.


def killer(step: str, times: int = 1) -> Callable[[str], None]:
    """Ends the process the moment it reaches a step, for the time that is given."""
    left = times

    def checkpoint(name: str) -> None:
        nonlocal left
        left -= name == step
        if left == 0 and name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return checkpoint


def run_forked(work: Callable[[], Awaitable[object]]) -> int:
    """In a process of its own, as quickly as a fork is made; returns how it ended."""

    async def bounded() -> None:
        async with asyncio.timeout(_WITHIN):
            await work()

    process = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(bounded()))
    process.start()
    process.join()
    return process.exitcode or 0


async def prepare(place: Place) -> None:
    async with Database(place.database) as database:
        await database.create_tables(own)
    async with place.api(relay=False), place.worker():
        pass


async def write(place: Place, ids: Sequence[str], rolled_back: Sequence[str]) -> None:
    """Orders and their events: committed, or rolled back after all was said."""
    bridge = place.api(relay=False, lazy_connect=True)
    async with bridge, Database(place.database) as database:
        for one in (*ids, *rolled_back):
            try:
                async with database.transaction() as connection:
                    await _order(bridge, connection, one)
                    if one in rolled_back:
                        raise LookupError(one)
            except LookupError:
                continue


async def write_and_die(place: Place, ids: Sequence[str]) -> None:
    """Everything said, and nothing committed."""
    bridge = place.api(relay=False, lazy_connect=True)
    async with bridge, Database(place.database) as database:
        async with database.transaction() as connection:
            for one in ids:
                await _order(bridge, connection, one)
            os.kill(os.getpid(), signal.SIGKILL)


async def _order(bridge: Bridge, connection: Any, one: str) -> None:
    await connection.execute(insert(orders), {"id": one})
    payload = {"id": one.rpartition("-")[2]}
    await bridge.publish(
        event_type="order.placed", event_id=one, payload=payload, connection=connection
    )


async def relay(place: Place, checkpoint: Callable[[str], None]) -> None:
    """Publishes until it is killed."""
    options: Any = {"batch": 10, "lease": _LEASE, "poll": 0.02, "checkpoint": checkpoint}
    async with PubSub(place.broker) as pubsub, Database(place.database) as database:
        async with Relay(database, pubsub, **options):
            await asyncio.Event().wait()


async def relay_all(place: Place) -> None:
    async with PubSub(place.broker) as pubsub, Database(place.database) as database:
        outbox = Outbox(database)
        async with Relay(database, pubsub, outbox=outbox, lease=_LEASE, poll=0.02):
            while (await outbox.status()).pending:
                await asyncio.sleep(0.02)


async def consume(place: Place, checkpoint: Callable[[str], None]) -> None:
    """Handles events until it is killed."""
    async with place.worker(auto_provision=False) as bridge:
        await bridge.consumer(_effect, batch_size=5, checkpoint=checkpoint).run()


async def consume_all(place: Place) -> None:
    """Until the stream holds nothing more."""
    async with place.worker(auto_provision=False) as bridge, bridge.consumer(_effect):
        admin = (await bridge.connection.broker()).admin
        while (await admin.describe_subscription(bridge.names.durable)).backlog:
            await asyncio.sleep(0.05)


async def consume_apart(
    place: Place, note: Callable[[str], None], checkpoint: Callable[[str], None] | None = None
) -> int:
    """Handles events without a connection, with the default patience: until it is killed, or until
    the stream holds nothing more; returns how many dead letters there are then."""

    async def handle(event: Any) -> None:
        note(event.event_id)

    async with place.worker(auto_provision=False, max_deliver=5) as bridge:
        broker = await bridge.connection.broker()
        async with bridge.consumer(handle, batch_size=5, checkpoint=checkpoint):
            while (await broker.admin.describe_subscription(bridge.names.durable)).backlog:
                await asyncio.sleep(0.05)
        return (await broker.admin.describe_topic(bridge.names.dlq_stream)).published


async def _effect(event: Any, connection: Any) -> None:
    await connection.execute(insert(effects), {"event": event.event_id})
