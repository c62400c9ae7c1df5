"""The outbox: messages that are published if and only if the transaction that adds them commits.

A row is `pending` until a relay has published it, or `dead` when it never can be.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    and_,
    case,
    delete,
    exists,
    func,
    literal,
    select,
    true,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.config import check_duration, check_name, check_whole
from penstock.errors import InvalidArgumentError
from penstock.message import Draft
from penstock.transactional.database import Database, database_time
from penstock.transactional.many_rows import ManyRows
from penstock.transactional.outbox_table import (
    DEAD,
    GIVEN,
    INSERT,
    INSERT_ARRAYS,
    PENDING,
    PUBLISHED,
    bundles,
    in_state,
    is_pending,
    metadata,
    table,
)
from penstock.transactional.schema import prepare

_STATEMENT_ROWS = 1000
_STATEMENT_BYTES = 8 * 2**20
LONGEST_DELAY = 366 * 86_400.0
_PENDING_AGAIN = {"state": PENDING, "attempts": 0, "claimed_by": None, "lease_until": 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxStatus:
    """A snapshot for health checks."""

    pending: int
    """Rows not yet published."""
    oldest_age: float
    """Seconds since the oldest of them was to be published; 0 when there is none."""
    waiting: int
    """Of the pending, how many wait for their time: for as long as their sender asked, or for
    another attempt after a failure."""
    claimed: int
    """Of the pending, how many a relay has in hand."""
    dead: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadRow:
    """A message that could not be published, and why. `id` is for `requeue`."""

    id: int
    topic: str
    message_id: str
    ordering_key: str | None
    attempts: int
    created_at: float
    reason: str


class Holder(NamedTuple):
    """Whose rows are from the moment they are added, by which fencing token, and for how many
    seconds. Nobody's: any relay may have them."""

    holder: str | None = None
    of_claim: int = 0
    lease: float = 0.0


_NOBODY = Holder()


class Outbox:
    """The outbox of one database. Rows are added in the caller's transaction.

    async with database.transaction() as connection:
        await connection.execute(…)                       # the caller's own writes
        await outbox.add(connection, "orders", [Draft.of(b"…")])
    relay.wake()
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def database(self) -> Database:
        return self._database

    async def create(self) -> None:
        """Create its table if it is not there; an error when it is one of another version."""
        await prepare(self._database, "outbox", metadata)

    async def check(self) -> None:
        """`create`, but that a table which is not there is a `NotFoundError`."""
        await prepare(self._database, "outbox", metadata, create=False)

    async def add(
        self,
        connection: AsyncConnection,
        topic: str,
        drafts: Sequence[Draft],
        *,
        after: float = 0.0,
        revive: bool = False,
    ) -> tuple[str, ...]:
        """Add messages to the transaction of `connection`; returns their message ids, in order.

        They are published after the commit, and not before `after` seconds have passed by the
        database's clock; later messages of their keys wait for them. A draft without a message
        id gets one. What the outbox already has of that topic, by message id, is left as it is;
        with `revive`, one that is dead becomes what is said now, and is published after all.
        """
        return await add_rows(connection, topic, drafts, after, revive)

    async def add_new(
        self, connection: AsyncConnection, topic: str, drafts: Sequence[Draft]
    ) -> None:
        """`add` for messages whose ids nobody has used before, and which every broker takes: they
        are neither looked for in the outbox nor checked by those that can do without."""
        await self.add(connection, topic, drafts)

    def add_blocking(
        self,
        connection: Connection,
        topic: str,
        drafts: Sequence[Draft],
        *,
        after: float = 0.0,
        revive: bool = False,
    ) -> tuple[str, ...]:
        """`add`, to the transaction of a connection that is not async."""
        ids, statements = _statements(connection.dialect.name, topic, drafts, after, revive)
        for statement, values in statements:
            if isinstance(statement, ManyRows):
                statement.execute_blocking(connection, values)
            else:
                connection.execute(statement, values)
        return ids

    async def hasten(self, connection: AsyncConnection, topic: str, message_id: str) -> bool:
        """Let a message that waits for its time go at once; whether it was still to be sent."""
        change = (
            update(table)
            .where(is_pending, table.c.topic == topic, table.c.message_id == message_id)
            .values(next_attempt_at=0.0)
        )
        if (await connection.execute(change)).rowcount > 0:
            return True
        # What somebody has in hand goes at once.
        bundled = exists().where(bundles.c.topic == topic, _has(connection, message_id))
        return bool(await connection.scalar(select(bundled)))

    async def pending(self) -> int:
        """Rows not yet published."""
        rows = select(func.count()).select_from(table).where(is_pending).scalar_subquery()
        bundled = select(func.coalesce(func.sum(bundles.c.count), 0)).scalar_subquery()
        # In one statement: meanwhile what is in a bundle may become rows, and be in neither.
        async with self._database.transaction(reading=True) as connection:
            return int((await connection.execute(select(rows + bundled))).scalar_one())

    async def status(self, topic: str | None = None) -> OutboxStatus:
        """Of all rows, or those of one topic."""
        now, c = database_time(), table.c
        among = [] if topic is None else [c.topic == topic]
        in_bundles = select(
            func.coalesce(func.sum(bundles.c.count), 0),
            func.coalesce(now - func.min(bundles.c.created_at), 0.0),
            func.coalesce(func.sum(bundles.c.count).filter(bundles.c.lease_until > now), 0),
        ).where(*([] if topic is None else [bundles.c.topic == topic]))
        wanted = case(
            # Never tried, so this is when its sender wants it to go.
            (and_(c.attempts == 0, c.next_attempt_at > c.created_at), c.next_attempt_at),
            else_=c.created_at,
        )
        pending = select(
            func.count(),
            func.coalesce(now - func.min(wanted), 0.0),
            func.count().filter(c.next_attempt_at > now),
            func.count().filter(c.lease_until > now),
        ).where(is_pending, *among)
        dead = select(func.count()).select_from(table).where(in_state(DEAD), *among)
        # One statement, as in `pending`.
        both = select(pending.subquery().join(in_bundles.subquery(), true()))
        async with self._database.transaction(reading=True) as connection:
            found = (await connection.execute(both)).one()
            died = (await connection.execute(dead)).scalar_one()
        count, age, waiting, claimed, more, age_of_more, held = found
        return OutboxStatus(
            pending=count + int(more),
            oldest_age=max(0.0, age, age_of_more),
            waiting=waiting,
            claimed=claimed + int(held),
            dead=died,
        )

    async def dead(self, *, limit: int = 100) -> list[DeadRow]:
        """The oldest dead rows."""
        check_whole("limit", limit, 1)
        c = table.c
        query = (
            select(
                c.id,
                c.topic,
                c.message_id,
                c.ordering_key,
                c.attempts,
                c.created_at,
                func.coalesce(c.last_error, "").label("reason"),
            )
            .where(in_state(DEAD))
            .order_by(c.id)
            .limit(limit)
        )
        async with self._database.transaction(reading=True) as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [DeadRow(**row) for row in rows]

    async def requeue(
        self, ids: Sequence[int] | None = None, *, topic: str | None = None, limit: int = 1000
    ) -> int:
        """Make dead rows pending again, with their message ids and all their attempts; returns
        how many. All of them, or those of `ids` or of `topic`; at most `limit`, oldest first."""
        check_whole("limit", limit, 1)
        chosen = select(table.c.id).where(in_state(DEAD))
        if ids is not None:
            chosen = chosen.where(table.c.id.in_(list(ids)))
        if topic is not None:
            chosen = chosen.where(table.c.topic == topic)
        change = (
            update(table)
            .where(table.c.id.in_(chosen.order_by(table.c.id).limit(limit)))
            .where(in_state(DEAD))
            .values(**_PENDING_AGAIN, next_attempt_at=0.0)
        )
        async with self._database.transaction() as connection:
            return (await connection.execute(change)).rowcount

    async def clean(self, older_than: float, *, topic: str | None = None, limit: int = 1000) -> int:
        """Delete rows published more than `older_than` seconds ago, all or those of a topic,
        `limit` a transaction; returns how many.

        A message id is remembered only as long as its row: `older_than` should exceed the time
        within which a caller may add the same message again.
        """
        check_whole("limit", limit, 1)
        if not older_than >= 0:
            raise InvalidArgumentError(f"older_than must not be negative, not {older_than!r}")
        old = (
            select(table.c.id)
            .where(in_state(PUBLISHED))
            .where(table.c.published_at < database_time() - older_than)
            .where(*([] if topic is None else [table.c.topic == topic]))
            .order_by(table.c.published_at)
            .limit(limit)
        )
        total = 0
        while True:
            async with self._database.transaction() as connection:
                gone = await connection.execute(delete(table).where(table.c.id.in_(old)))
            total += gone.rowcount
            if gone.rowcount < limit:
                return total


async def add_rows(
    connection: AsyncConnection,
    topic: str,
    drafts: Sequence[Draft],
    after: float = 0.0,
    revive: bool = False,
    holder: Holder = _NOBODY,
) -> tuple[str, ...]:
    """`Outbox.add`, for a relay that may have them from the beginning."""
    dialect = connection.dialect.name
    ids, statements = _statements(dialect, topic, drafts, after, revive, holder)
    await _execute(connection, statements)
    return ids


async def add_committed(
    connection: AsyncConnection, topic: str, drafts: Sequence[Draft], since: float
) -> None:
    """Rows for messages with ids that were committed in another form, `since` when they are to be
    sent. They are not checked: there is nobody left to be told, and whatever is wrong with one, a
    broker refuses that one alone."""
    common = _common(topic, 0.0, _NOBODY, since)
    dialect = connection.dialect.name
    await _execute(connection, (_statement(dialect, common, some) for some in portions(drafts)))


async def _execute(connection: AsyncConnection, statements: Iterable[tuple[Any, Any]]) -> None:
    for statement, values in statements:
        if isinstance(statement, ManyRows):
            await statement.execute(connection, values)
        else:
            await connection.execute(statement, values)


def _statements(
    dialect: str,
    topic: str,
    drafts: Sequence[Draft],
    after: float,
    revive: bool,
    holder: Holder = _NOBODY,
) -> tuple[tuple[str, ...], Iterator[tuple[Any, Any]]]:
    """The ids of the drafts, and what adds them, with its values."""
    check_name("Topic", topic)
    check_duration("after", after, 0, LONGEST_DELAY)
    checked = [_checked(draft) for draft in drafts]
    ids = tuple(str(draft.message_id) for draft in checked)
    common = _common(topic, after, holder)
    revivals = [(_revival(topic, draft, after), None) for draft in checked] if revive else []
    additions = (_statement(dialect, common, portion) for portion in portions(checked))
    return ids, chain(revivals, additions)


def _common(topic: str, after: float, holder: Holder, since: float | None = None) -> dict[str, Any]:
    return {"of_topic": topic, "after": after, "since": since, **holder._asdict()}


def _has(connection: AsyncConnection, message_id: str) -> ColumnElement[bool]:
    """Whether it is in a bundle, by its id as it is written there, with its length before it."""
    written = literal(msgspec.msgpack.encode(message_id), LargeBinary())
    if connection.dialect.name == "sqlite":
        return func.instr(bundles.c.messages, written) > 0
    return func.position(written.op("IN")(bundles.c.messages)) > 0


def _revival(topic: str, draft: Draft, after: float) -> Any:
    """A dead row becomes as if it had just been added."""
    said = {name: getattr(draft, name) for name in GIVEN if name != "message_id"}
    said["attributes"] = dict(draft.attributes)
    return (
        update(table)
        .where(in_state(DEAD), table.c.topic == topic, table.c.message_id == draft.message_id)
        .values(
            **said,
            **_PENDING_AGAIN,
            next_attempt_at=database_time() + after if after else 0.0,
            created_at=database_time(),
            last_error=None,
        )
    )


def _statement(dialect: str, common: dict[str, Any], drafts: Sequence[Draft]) -> tuple[Any, Any]:
    rows = list(map(_row, drafts))
    if dialect == "postgresql":
        return INSERT_ARRAYS, {**common, **{name: [row[name] for row in rows] for name in GIVEN}}
    return INSERT, [common | row for row in rows]


def _checked(draft: Draft) -> Draft:
    if not isinstance(draft, Draft):
        raise InvalidArgumentError(f"The outbox takes drafts, not {type(draft).__name__}")
    if draft.expect is not None:
        raise InvalidArgumentError(
            "A draft in an outbox cannot expect anything of its topic: by the time it is "
            "published that may no longer hold"
        )
    return Draft.of(
        draft.data,
        draft.attributes,
        draft.ordering_key,
        draft.message_id,
        draft.subject,
        ttl=draft.ttl,
        own_id=None if draft.message_id else uuid.uuid4().hex,
    )


def portions(drafts: Sequence[Draft]) -> Iterator[list[Draft]]:
    """Of a size that one statement takes."""
    portion: list[Draft] = []
    size = 0
    for draft in drafts:
        if portion and (len(portion) == _STATEMENT_ROWS or size > _STATEMENT_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(draft)
        size += len(draft.data)
    if portion:
        yield portion


def _row(draft: Draft) -> dict[str, Any]:
    return {
        "message_id": draft.message_id,
        "ordering_key": draft.ordering_key,
        "subject": draft.subject,
        "data": draft.data,
        "attributes": msgspec.json.encode(draft.attributes).decode(),
        "ttl": draft.ttl,
    }
