"""The inbox: the effect of an event commits once, however often it is delivered.

An event is marked as processed in the transaction of its effect, before the effect: the mark counts
only if the transaction commits. Whoever comes with the same event meanwhile waits for that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec
from sqlalchemy import and_, delete, func, literal, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.config import DAY, check_duration, check_whole
from penstock.errors import FailedPreconditionError, InvalidArgumentError, PenstockError
from penstock.message import Message, check_text
from penstock.transactional.database import (
    CommitGuard,
    Database,
    database_time,
    insert_into,
)
from penstock.transactional.inbox_table import (
    FAILED,
    GIVEN,
    MARK,
    MARK_ARRAYS,
    PROCESSED,
    PROCESSING,
    RECEIVED,
    c,
    in_status,
    inbox,
    is_unprocessed,
    metadata,
)
from penstock.transactional.schema import prepare

_LONGEST_ID = 1024
_LONGEST_REASON = 2000
_COUNTED = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """An event as it was delivered. `event_id` is what it is known by; `sequence_id` makes one for
    those that have none. The rest is for those who look at the table."""

    event_id: str
    event_type: str = ""
    payload: bytes | str = b""
    resource_type: str | None = None
    resource_id: str | None = None
    subject: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: str | None = None
    stream_seq: int | None = None
    deliveries: int | None = None

    def __post_init__(self) -> None:
        check_text("event_id", self.event_id, _LONGEST_ID)
        if not self.event_id:
            raise InvalidArgumentError(
                "An event in an inbox needs an event_id; sequence_id makes one"
            )


class MessageEffects:
    """A transaction for the effects of messages. `fresh`: those that had none before; `failures`:
    those that are to have none now."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection
        self.fresh: list[Message] = []
        self.failures: dict[Message, Exception] = {}


class Taken(Enum):
    """What became of an attempt to take an event."""

    OURS = "ours"
    BUSY = "busy"
    """Somebody else works on it."""
    DONE = "done"


@dataclass(frozen=True, kw_only=True, slots=True)
class InboxStatus:
    """A snapshot for health checks: rows by status, and seconds since the oldest that is not
    processed was received. Of the processed, which are most of the table, 100,000 are counted."""

    received: int = 0
    processing: int = 0
    processed: int = 0
    failed: int = 0
    oldest_age: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class InboxRow:
    """An event in the inbox, without its payload."""

    event_id: str
    consumer: str
    event_type: str
    status: str
    processing_attempts: int
    deliveries: int | None
    received_at: float | None
    error_message: str | None


class Inbox:
    """What one consumer has received, in one database.

    async with inbox.once(arrival) as connection:
        if connection is not None:                        # else it was processed before
            await connection.execute(…)                   # the effect

    `replay_horizon`: seconds within which an event may be delivered again: as long as the broker
    keeps it, or its dead letter. Nothing younger is ever deleted.
    """

    def __init__(
        self, database: Database, consumer: str, *, replay_horizon: float = 31 * DAY
    ) -> None:
        check_text("consumer", consumer, _LONGEST_ID)
        check_duration("replay_horizon", replay_horizon, 0, 3650 * DAY)
        self._database = database
        self._consumer = consumer
        self._replay_horizon = replay_horizon

    @property
    def database(self) -> Database:
        return self._database

    @property
    def consumer(self) -> str:
        return self._consumer

    async def create(self) -> None:
        """Create its table if it is not there; an error when it is one of another version."""
        await prepare(self._database, "inbox", metadata)

    async def check(self) -> None:
        """`create`, but that a table which is not there is a `NotFoundError`."""
        await prepare(self._database, "inbox", metadata, create=False)

    # The effect and the mark in one transaction.

    @asynccontextmanager
    async def once(self, arrival: Arrival) -> AsyncIterator[AsyncConnection | None]:
        """A transaction for the event's effect, which commits with the mark when the block
        succeeds; None when the event was processed before.

        When the block raises nothing of it is kept but the failure, and the error goes on.
        """
        try:
            async with self._database.transaction() as connection:
                fresh = await self.mark(connection, [arrival])
                with _kept_open(connection):
                    yield connection if fresh else None
        except Exception as error:
            # A database out of reach is told by the error that goes on.
            with suppress(PenstockError):
                await self.note_failure(arrival, error)
            raise

    @asynccontextmanager
    async def effects(
        self, messages: Mapping[Message, str], topic: str
    ) -> AsyncIterator[MessageEffects]:
        """A transaction for the effects of messages by their ids, which commits with the marks.

        Those in `failures` when the block ends are not marked. When it raises nothing is kept but
        the failures, and the error goes on.
        """
        arrivals = {key: _arrival(message, key, topic) for message, key in messages.items()}
        try:
            async with self._database.transaction() as connection:
                effects = MessageEffects(connection)
                new = await self.mark(connection, list(arrivals.values()))
                for message, key in messages.items():
                    if key in new:
                        new.discard(key)
                        effects.fresh.append(message)
                with _kept_open(connection):
                    yield effects
                for message, failure in effects.failures.items():
                    if message in effects.fresh:
                        await self.unmark(connection, [messages[message]], failure)
        except Exception as error:
            with suppress(PenstockError):
                for arrival in arrivals.values():
                    await self.note_failure(arrival, error)
            raise

    async def mark(self, connection: AsyncConnection, arrivals: Sequence[Arrival]) -> set[str]:
        """Mark events as processed in the transaction of `connection`; returns the ids of those
        that were not.

        Waits for others who have one of them in hand. For an event that fails after all, call
        `unmark` before the transaction ends.
        """
        unique = {arrival.event_id: arrival for arrival in arrivals}
        with self._database.own_statements("inbox"):
            return await self._mark(connection, unique) if unique else set()

    async def _mark(self, connection: AsyncConnection, unique: Mapping[str, Arrival]) -> set[str]:
        if connection.dialect.name == "postgresql":
            return await self._mark_arrays(connection, list(unique.values()), PROCESSED, None)
        # SQLite has one writer, and by now it is us.
        known = select(c.event_id).where(self._among(unique), in_status(PROCESSED))
        before = set((await connection.execute(known)).scalars())
        fresh = [arrival for key, arrival in unique.items() if key not in before]
        if fresh:
            await connection.execute(MARK[PROCESSED], [self._row(a, None) for a in fresh])
        return unique.keys() - before

    async def unmark(
        self, connection: AsyncConnection, event_ids: Collection[str], error: Exception | None
    ) -> None:
        """In the transaction that marked them: they failed, or were not even tried (no error)."""
        tried = error is not None
        change = (
            update(inbox)
            .where(self._among(event_ids))
            .values(
                status=FAILED if tried else RECEIVED,
                processing_attempts=c.processing_attempts - (0 if tried else 1),
                processed_at=None,
                failed_at=database_time() if tried else c.failed_at,
                error_message=_reason(error) if error is not None else c.error_message,
                updated_at=database_time(),
            )
        )
        await connection.execute(change)

    async def note_failure(self, arrival: Arrival, error: Exception) -> bool:
        """Write down that an attempt failed, in a transaction of its own. What is processed by
        now stays so: False."""
        async with self._writing() as connection:
            why = _reason(error)
            if connection.dialect.name == "postgresql":
                return bool(await self._mark_arrays(connection, [arrival], FAILED, why))
            noted = await connection.execute(MARK[FAILED], self._row(arrival, why))
            return noted.rowcount > 0

    # The effect elsewhere: the mark says who works on it.

    async def take(self, arrival: Arrival, lease: float) -> Taken:
        """Take an event whose effect is not in this database. It is ours for `lease` seconds;
        `finish` it, or `note_failure`."""
        check_duration("lease", lease, 0.001, DAY)
        free = or_(
            in_status(RECEIVED),
            in_status(FAILED),
            and_(in_status(PROCESSING), c.updated_at < database_time() - lease),
        )
        async with self._writing() as connection:
            given = self._row(arrival, None)
            row = {name: given[name] for name in GIVEN} | {"headers": dict(arrival.headers)}
            now = database_time()
            insert = insert_into(connection, inbox).values(
                **row,
                consumer=self._consumer,
                status=PROCESSING,
                processing_attempts=1,
                created_at=now,
                updated_at=now,
                received_at=now,
            )
            taken = insert.on_conflict_do_update(
                index_elements=["event_id", "consumer"],
                set_={
                    "status": PROCESSING,
                    "processing_attempts": c.processing_attempts + 1,
                    "updated_at": now,
                    "deliveries": insert.excluded.deliveries,
                },
                where=free,
            ).returning(c.event_id)
            if (await connection.execute(taken)).first() is not None:
                return Taken.OURS
            status = select(c.status).where(self._among([arrival.event_id]))
            found = (await connection.execute(status)).scalar_one()
        return Taken.DONE if found == PROCESSED else Taken.BUSY

    async def finish(self, event_ids: Collection[str]) -> None:
        """What was taken is done."""
        now = database_time()
        change = (
            update(inbox)
            .where(self._among(event_ids), is_unprocessed)
            .values(status=PROCESSED, processed_at=now, updated_at=now, error_message=None)
        )
        async with self._writing() as connection:
            await connection.execute(change)

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        with self._database.own_statements("inbox"):
            async with self._database.transaction() as connection:
                yield connection

    # Looking after it.

    async def status(self) -> InboxStatus:
        mine = c.consumer == self._consumer
        counts = (
            select(c.status, func.count(), func.min(c.received_at))
            .where(mine, is_unprocessed)
            .group_by(c.status)
        )
        done = select(literal(1)).where(mine, in_status(PROCESSED)).limit(_COUNTED).subquery()
        async with self._database.transaction(reading=True) as connection:
            rows = (await connection.execute(counts)).all()
            processed = await connection.scalar(select(func.count()).select_from(done))
            now = await self._database.time(connection)
        waiting = [since for _, _, since in rows if since]
        return InboxStatus(
            **{status: count for status, count, _ in rows},
            processed=processed or 0,
            oldest_age=max(0.0, now - min(waiting)) if waiting else 0.0,
        )

    async def rows(self, status: str | None = None, *, limit: int = 100) -> list[InboxRow]:
        """The newest events, or those of one status."""
        check_whole("limit", limit, 1)
        columns = [c[name] for name in InboxRow.__dataclass_fields__]
        query = select(*columns).where(c.consumer == self._consumer)
        if status is not None:
            query = query.where(in_status(_known(status)))
        async with self._database.transaction(reading=True) as connection:
            found = await connection.execute(query.order_by(c.created_at.desc()).limit(limit))
        return [InboxRow(**row) for row in found.mappings()]

    async def clean(self, older_than: float, *, limit: int = 1000) -> int:
        """Delete what nothing has happened to for `older_than` seconds, `limit` a transaction;
        returns how many. `InvalidArgumentError` within the replay horizon: an event delivered
        again would be taken for new."""
        check_whole("limit", limit, 1)
        if not older_than >= self._replay_horizon:
            raise InvalidArgumentError(
                f"older_than is {older_than!r}, but events of consumer {self._consumer!r} may be "
                f"delivered again for {self._replay_horizon:g} seconds, and would be processed "
                "again; keep them at least that long"
            )
        horizon = database_time() - older_than
        old = (
            select(c.event_id, c.consumer)
            .where(c.consumer == self._consumer, c.created_at < horizon, c.updated_at < horizon)
            .order_by(c.created_at)
            .limit(limit)
        )
        gone = delete(inbox).where(tuple_(c.event_id, c.consumer).in_(old))
        total = 0
        while True:
            async with self._database.transaction() as connection:
                deleted = (await connection.execute(gone)).rowcount
            total += deleted
            if deleted < limit:
                return total

    async def _mark_arrays(
        self, connection: AsyncConnection, arrivals: Sequence[Arrival], status: str, why: str | None
    ) -> set[str]:
        rows = [self._row(arrival, why) for arrival in arrivals]
        arrays = {name: [row[name] for row in rows] for name in GIVEN}
        marked = await connection.execute(
            MARK_ARRAYS[status], {**arrays, "of_consumer": self._consumer, "why": why}
        )
        return set(marked.scalars())

    def _among(self, event_ids: Collection[str]) -> Any:
        return and_(c.event_id.in_(list(event_ids)), c.consumer == self._consumer)

    def _row(self, arrival: Arrival, why: str | None) -> dict[str, Any]:
        row: dict[str, Any] = {name: getattr(arrival, name) for name in GIVEN}
        for name, value in row.items():
            if isinstance(value, bytes | str):
                row[name] = _storable(value)
        row["headers"] = msgspec.json.encode(dict(arrival.headers)).decode()
        return {**row, "of_consumer": self._consumer, "why": why}


@contextmanager
def _kept_open(connection: AsyncConnection) -> Iterator[None]:
    """The block may not end the transaction: what it commits would be marked, done or not, and what
    it rolls back would be taken for done."""

    def refusal() -> Exception:
        return FailedPreconditionError(
            "The transaction of an inbox was ended by what is done in it: leave commit, rollback "
            "and close to the inbox, and use connection.begin_nested() or a session on it instead"
        )

    with CommitGuard(connection, refusal):
        yield
    if not connection.in_transaction():
        raise refusal()


def _storable(value: bytes | str) -> str:
    """As text that every database takes: PostgreSQL has none with a zero in it."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return text.replace("\x00", "\ufffd")


def _reason(error: Exception) -> str:
    text = _storable(f"{type(error).__name__}: {error}")
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


def _known(status: str) -> str:
    known = (RECEIVED, PROCESSING, PROCESSED, FAILED)
    if status not in known:
        raise InvalidArgumentError(f"No status {status!r}; there are {', '.join(known)}")
    return status


def _arrival(message: Message, event_id: str, topic: str) -> Arrival:
    return Arrival(
        event_id=event_id,
        payload=message.data,
        subject=message.subject,
        headers=message.attributes,
        stream=topic,
        deliveries=message.delivery_attempt,
    )
