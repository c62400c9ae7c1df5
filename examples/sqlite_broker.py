"""A broker of your own, in one file: durable, in SQLite, shared by the processes that open it.

It claims what it does and no more; Penstock refuses the rest before it is asked. Its calls block
the event loop for as long as SQLite takes, which an example may. Run it: python
examples/sqlite_broker.py
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import msgspec

from penstock import BrokerKind, Capabilities, PenstockError, PubSub, register_broker
from penstock.broker import SnapshotStatus, SubscriptionStatus, TopicStatus, Unsettled, Usage
from penstock.clock import NS, Clock
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.errors import (
    AlreadyExistsError,
    ClosedError,
    SnapshotNotFoundError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnavailableError,
    UnimplementedError,
)
from penstock.message import AckResponse, Delivery, Draft, Receipt, Record, Settlement, Verb

# Seconds between looks while a pull waits: another process may publish, and deadlines pass.
LOOK_AGAIN = 0.02

# `waiting` has a row for each message a subscription has not settled. `free_ns` is when it may be
# handed out: published, nacked or expired before. While it is on loan, `ack_id` names the loan.
TABLES = """
PRAGMA foreign_keys = ON;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS topics (
    name TEXT PRIMARY KEY, config TEXT NOT NULL, published INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS subscriptions (
    name TEXT PRIMARY KEY, config TEXT NOT NULL,
    topic TEXT NOT NULL REFERENCES topics ON DELETE CASCADE);
CREATE TABLE IF NOT EXISTS messages (
    topic TEXT NOT NULL REFERENCES topics ON DELETE CASCADE, sequence INTEGER NOT NULL,
    message_id TEXT NOT NULL, data BLOB NOT NULL, attributes TEXT NOT NULL, ordering_key TEXT,
    subject TEXT NOT NULL, published_ns INTEGER NOT NULL, PRIMARY KEY (topic, sequence));
CREATE TABLE IF NOT EXISTS waiting (
    subscription TEXT NOT NULL REFERENCES subscriptions ON DELETE CASCADE,
    topic TEXT NOT NULL, sequence INTEGER NOT NULL, free_ns INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, ack_id TEXT, PRIMARY KEY (subscription, sequence),
    FOREIGN KEY (topic, sequence) REFERENCES messages ON DELETE CASCADE);
CREATE INDEX IF NOT EXISTS free ON waiting (subscription, free_ns);
CREATE INDEX IF NOT EXISTS needed ON waiting (topic, sequence);
CREATE INDEX IF NOT EXISTS lent ON waiting (ack_id);
"""

# An ack id counts while its loan lasts, and for its own subscription.
FINISH = (
    "DELETE FROM waiting WHERE ack_id = ? AND subscription = ? AND free_ns > ? RETURNING sequence"
)
EXTEND = "UPDATE waiting SET free_ns = ? WHERE ack_id = ? AND subscription = ? AND free_ns > ?"
RETURN = (
    "UPDATE waiting SET ack_id = NULL, free_ns = ?, attempts = attempts - ?"
    " WHERE ack_id = ? AND subscription = ? AND free_ns > ?"
)


class SqliteBroker:
    """`sqlite://FILE`. It is its own `admin`, and has no log to read again."""

    name = "SQLite"
    project = "penstock"
    log = None
    capabilities = Capabilities(
        durable=True,
        delayed_nack=True,
        sets_deadlines=True,
        delivery_attempts=True,
        backlog=True,
    )

    def __init__(self, path: Path | str, clock: Clock) -> None:
        self._clock = clock
        self._closed = False
        try:
            self._connection = sqlite3.connect(path, isolation_level=None)
            self._connection.executescript(TABLES)
        except sqlite3.Error as error:
            raise UnavailableError(f"SQLite cannot open {str(path)!r}: {error}") from error

    @classmethod
    async def open(cls, url: str, clock: Clock) -> SqliteBroker:
        return cls(url.partition("://")[2], clock)

    @property
    def admin(self) -> SqliteBroker:
        return self

    # Messages.

    async def publish(self, topic: str, drafts: Sequence[Draft]) -> list[Receipt]:
        if not drafts:
            return self._nothing()
        with self._transaction() as run:
            last, _ = self._topic(run, topic)
            now = self._clock.time_ns()
            receipts = [
                Receipt(draft.message_id or uuid4().hex, sequence)
                for sequence, draft in enumerate(drafts, last + 1)
            ]
            run.executemany(
                "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        *(topic, receipt.sequence, receipt.message_id, draft.data),
                        *(_text(draft.attributes), draft.ordering_key, draft.subject or topic, now),
                    )
                    for draft, receipt in zip(drafts, receipts, strict=True)
                ],
            )
            run.execute(
                "INSERT INTO waiting (subscription, topic, sequence, free_ns)"
                " SELECT s.name, m.topic, m.sequence, m.published_ns FROM messages m"
                " JOIN subscriptions s ON s.topic = m.topic WHERE m.topic = ? AND m.sequence > ?",
                (topic, last),
            )
            run.execute(
                "UPDATE topics SET published = published + ? WHERE name = ?", (len(drafts), topic)
            )
            self._drop_unneeded(run, topic, last + 1, last + len(drafts))
            return receipts

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> list[Delivery]:
        if max_messages < 1:
            return self._nothing()
        until = self._clock.monotonic() + wait
        while True:
            taken = self._take(subscription, max_messages, max_bytes)
            remaining = until - self._clock.monotonic()
            if taken or remaining <= 0:
                return taken
            await asyncio.sleep(min(remaining, LOOK_AGAIN))

    def _take(self, subscription: str, max_messages: int, max_bytes: int) -> list[Delivery]:
        with self._transaction() as run:
            config = self._subscription(run, subscription)
            now = self._clock.time_ns()
            taken: list[Delivery] = []
            for topic, attempts, sequence, message_id, data, attributes, *rest in run.execute(
                "SELECT m.topic, w.attempts, m.sequence, m.message_id, m.data, m.attributes,"
                " m.ordering_key, m.subject, m.published_ns FROM waiting w"
                " JOIN messages m ON m.topic = w.topic AND m.sequence = w.sequence"
                " WHERE w.subscription = ? AND w.free_ns <= ? ORDER BY w.free_ns, w.sequence"
                " LIMIT ?",
                (subscription, now, max_messages),
            ).fetchall():
                decoded = msgspec.json.decode(attributes, type=dict[str, str])
                record = Record(sequence, message_id, data, decoded, *rest)
                max_bytes -= record.size
                if max_bytes < 0 and taken:
                    break
                ack_id = uuid4().hex
                run.execute(
                    "UPDATE waiting SET ack_id = ?, free_ns = ?, attempts = attempts + 1"
                    " WHERE subscription = ? AND topic = ? AND sequence = ?",
                    (ack_id, now + int(config.ack_deadline * NS), subscription, topic, sequence),
                )
                taken.append(Delivery(record, ack_id, attempts + 1, config.ack_deadline))
            return taken

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> list[AckResponse]:
        if not settlements:
            return self._nothing()
        with self._transaction() as run:
            topic = self._subscription(run, subscription).topic
            now = self._clock.time_ns()
            for settlement in settlements:
                lent = (settlement.ack_id, subscription, now)
                free_ns = now + int((settlement.seconds or 0) * NS)
                if settlement.verb in (Verb.ACK, Verb.REJECT):
                    for (sequence,) in run.execute(FINISH, lent).fetchall():
                        self._drop_unneeded(run, topic, sequence, sequence)
                elif settlement.verb is Verb.EXTEND and settlement.seconds:
                    run.execute(EXTEND, (free_ns, *lent))
                else:
                    # Nobody has looked at what is released: that attempt does not count.
                    run.execute(RETURN, (free_ns, settlement.verb is Verb.RELEASE, *lent))
            return [AckResponse.SUCCESS] * len(settlements)

    async def ping(self) -> float:
        began = self._clock.monotonic()
        with self._transaction() as run:
            run.execute("SELECT 1")
        return self._clock.monotonic() - began

    async def aclose(self) -> None:
        self._closed = True
        self._connection.close()

    # Topics and subscriptions.

    async def create_topic(self, config: TopicConfig) -> None:
        with self._transaction() as run, _new("Topic", config.name):
            run.execute(
                "INSERT INTO topics (name, config) VALUES (?, ?)", (config.name, _text(config))
            )

    async def delete_topic(self, topic: str) -> None:
        with self._transaction() as run:
            self._topic(run, topic)
            run.execute("DELETE FROM topics WHERE name = ?", (topic,))

    async def list_topics(self) -> list[str]:
        with self._transaction() as run:
            return [name for (name,) in run.execute("SELECT name FROM topics ORDER BY name")]

    async def describe_topic(self, topic: str) -> TopicStatus:
        with self._transaction() as run:
            published, config = self._topic(run, topic)
            names = run.execute(
                "SELECT name FROM subscriptions WHERE topic = ? ORDER BY name", (topic,)
            )
            subscriptions = tuple(name for (name,) in names)
        return TopicStatus(config=config, subscriptions=subscriptions, published=published)

    async def create_subscription(self, config: SubscriptionConfig) -> None:
        with self._transaction() as run:
            self._topic(run, config.topic)
            with _new("Subscription", config.name):
                run.execute(
                    "INSERT INTO subscriptions (name, config, topic) VALUES (?, ?, ?)",
                    (config.name, _text(config), config.topic),
                )

    async def delete_subscription(self, subscription: str) -> None:
        with self._transaction() as run:
            topic = self._subscription(run, subscription).topic
            run.execute("DELETE FROM subscriptions WHERE name = ?", (subscription,))
            self._drop_unneeded(run, topic, 1, self._topic(run, topic)[0])

    async def list_subscriptions(self, topic: str | None = None) -> Sequence[str]:
        if topic is not None:
            return (await self.describe_topic(topic)).subscriptions
        with self._transaction() as run:
            return [name for (name,) in run.execute("SELECT name FROM subscriptions ORDER BY 1")]

    async def describe_subscription(self, subscription: str) -> SubscriptionStatus:
        with self._transaction() as run:
            config = self._subscription(run, subscription)
            now = self._clock.time_ns()
            messages, leased, oldest = run.execute(
                "SELECT count(*), total(w.ack_id IS NOT NULL AND w.free_ns > ?),"
                " min(m.published_ns) FROM waiting w JOIN messages m"
                " ON m.topic = w.topic AND m.sequence = w.sequence WHERE w.subscription = ?",
                (now, subscription),
            ).fetchone()
        age = (now - oldest) / NS if messages else 0.0
        unsettled = Unsettled(messages=messages, leased=int(leased), oldest_age=age)
        return SubscriptionStatus(config=config, unsettled=unsettled)

    async def usage(self) -> Usage:
        raise UnimplementedError("The SQLite broker does not count what it holds")

    async def update_topic(self, config: TopicConfig) -> None:  # noqa: ARG002
        _cannot_change()

    async def update_subscription(self, config: SubscriptionConfig) -> None:  # noqa: ARG002
        _cannot_change()

    async def detach_subscription(self, subscription: str) -> None:  # noqa: ARG002
        _cannot_change()

    async def create_snapshot(self, snapshot: str, subscription: str) -> None:  # noqa: ARG002
        _cannot_go_back()

    async def list_snapshots(self, topic: str | None = None) -> list[str]:  # noqa: ARG002
        return []

    async def describe_snapshot(self, snapshot: str) -> SnapshotStatus:
        raise SnapshotNotFoundError(snapshot)

    async def delete_snapshot(self, snapshot: str) -> None:  # noqa: ARG002
        _cannot_go_back()

    async def seek(self, subscription: str, to: datetime | str) -> None:  # noqa: ARG002
        _cannot_go_back()

    # What the calls share.

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, also when the process dies half-way."""
        self._check_open()
        run = self._connection
        try:
            run.execute("BEGIN IMMEDIATE")
            try:
                yield run
                run.execute("COMMIT")
            except BaseException:
                run.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise UnavailableError(f"SQLite cannot do this now: {error}") from error

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("This SQLite broker is closed; open it again")

    def _nothing(self) -> list[Any]:
        self._check_open()
        return []

    def _topic(self, run: sqlite3.Connection, name: str) -> tuple[int, TopicConfig]:
        found = run.execute(
            "SELECT published, config FROM topics WHERE name = ?", (name,)
        ).fetchone()
        if found is None:
            raise TopicNotFoundError(name)
        return found[0], msgspec.json.decode(found[1], type=TopicConfig)

    def _subscription(self, run: sqlite3.Connection, name: str) -> SubscriptionConfig:
        found = run.execute("SELECT config FROM subscriptions WHERE name = ?", (name,)).fetchone()
        if found is None:
            raise SubscriptionNotFoundError(name)
        return msgspec.json.decode(found[0], type=SubscriptionConfig)

    def _drop_unneeded(self, run: sqlite3.Connection, topic: str, first: int, last: int) -> None:
        """Without a log to read again, what every subscription has settled can go."""
        run.execute(
            "DELETE FROM messages WHERE topic = ? AND sequence BETWEEN ? AND ? AND NOT EXISTS"
            " (SELECT 1 FROM waiting w"
            "  WHERE w.topic = messages.topic AND w.sequence = messages.sequence)",
            (topic, first, last),
        )


@contextmanager
def _new(kind: str, name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError:
        raise AlreadyExistsError(f"{kind} already exists: {name!r}") from None


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _cannot_change() -> NoReturn:
    raise UnimplementedError("The SQLite broker changes nothing that exists; create it again")


def _cannot_go_back() -> NoReturn:
    raise UnimplementedError("The SQLite broker keeps nothing to go back to")


BROKER = BrokerKind(SqliteBroker.open)
"""What an entry point of the group `penstock.brokers` names: `sqlite = "sqlite_broker:BROKER"`."""


async def main() -> None:
    register_broker("sqlite", BROKER)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite://{folder}/shop.db"
        async with PubSub(url) as pubsub:
            topic = await pubsub.topic("orders").create()
            await topic.subscription("billing").create()
            for what in (b"a book", b"a pen"):
                await topic.publish_message(what)
            try:
                await topic.subscription("books", filter='attributes.kind = "book"').create()
            except PenstockError as error:
                print(type(error).__name__)
        async with PubSub(url) as pubsub:
            found = 0
            async for message in pubsub.subscription("billing"):
                async with message:
                    print("still there:", message.data.decode())
                found += 1
                if found == 2:
                    break


if __name__ == "__main__":
    asyncio.run(main())

# prints:
# UnimplementedError
# still there: a book
# still there: a pen
