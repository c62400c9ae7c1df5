"""The outbox: messages that are published if and only if the transaction that adds them commits.

A row is `pending` until a relay has published it, or `dead` when it never can be.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    and_,
    delete,
    func,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.broker import check_name
from penstock.errors import InvalidArgumentError
from penstock.flow import check_whole
from penstock.message import Draft
from penstock.transactional.database import Database, database_time

metadata = MetaData()

table = Table(
    "penstock_outbox",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("topic", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("ordering_key", Text),
    Column("subject", Text),
    Column("data", LargeBinary, nullable=False),
    Column("attributes", JSON, nullable=False),
    Column("ttl", Double),
    Column("created_at", Double, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", Double, nullable=False),
    Column("claimed_by", Text),
    Column("fence", BigInteger, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("last_error", Text),
    Column("published_at", Double),
    Column("sequence", BigInteger),
    UniqueConstraint("topic", "message_id", name="penstock_outbox_message"),
)

PENDING, PUBLISHED, DEAD = "pending", "published", "dead"


def in_state(state: str, column: ColumnElement[str] = table.c.state) -> ColumnElement[bool]:
    """Written out rather than passed along: else no planner would use the partial indexes."""
    return column == literal_column(f"'{state}'")


is_pending = in_state(PENDING)


def _index(name: str, *columns: Any, only: Any) -> Index:
    """A partial one: the published rows, which are most of the table, cost it nothing."""
    full = f"penstock_outbox_{name}"
    return Index(full, *columns, sqlite_where=only, postgresql_where=only)


is_keyless = and_(is_pending, table.c.ordering_key.is_(None))
is_keyed = and_(is_pending, table.c.ordering_key.is_not(None))
_index("keyless", table.c.id, only=is_keyless)
_index("keyed", table.c.id, only=is_keyed)
# Rows that never were are not in these, which are therefore small.
was_claimed = and_(is_keyed, table.c.lease_until > text("0"))
was_delayed = and_(is_keyed, table.c.next_attempt_at > text("0"))
_index("claimed", table.c.lease_until, only=was_claimed)
_index("delayed", table.c.next_attempt_at, only=was_delayed)
_index("claims", table.c.claimed_by, table.c.fence, only=is_pending)
_index("published", table.c.published_at, only=in_state(PUBLISHED))
_index("dead", table.c.id, only=in_state(DEAD))


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxStatus:
    """A snapshot for health checks."""

    pending: int
    """Rows not yet published."""
    oldest_age: float
    """Seconds since the oldest of them was added; 0 when there is none."""
    waiting: int
    """Of the pending, how many wait for another attempt after a failure."""
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
        """Create its table if it is not there."""
        await self._database.create_tables(metadata)

    async def add(
        self, connection: AsyncConnection, topic: str, drafts: Sequence[Draft]
    ) -> tuple[str, ...]:
        """Add messages to the transaction of `connection`; returns their message ids, in order.

        A draft without a message id gets one. What the outbox already has of that topic, by
        message id, is left as it is.
        """
        check_name("Topic", topic)
        checked = [_checked(draft) for draft in drafts]
        if not checked:
            return ()
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        insert = dialect.insert(table).values(
            created_at=database_time(),
            state=PENDING,
            attempts=0,
            next_attempt_at=0.0,
            fence=0,
            lease_until=0.0,
        )
        insert = insert.on_conflict_do_nothing(index_elements=["topic", "message_id"])
        await connection.execute(
            # Asked to return something, SQLAlchemy inserts many rows a statement.
            insert.returning(table.c.id),
            [
                {
                    "topic": topic,
                    "message_id": draft.message_id,
                    "ordering_key": draft.ordering_key,
                    "subject": draft.subject,
                    "data": draft.data,
                    "attributes": dict(draft.attributes),
                    "ttl": draft.ttl,
                }
                for draft in checked
            ],
        )
        return tuple(str(draft.message_id) for draft in checked)

    async def pending(self) -> int:
        """Rows not yet published."""
        async with self._database.transaction(reading=True) as connection:
            count = select(func.count()).select_from(table).where(is_pending)
            return int((await connection.execute(count)).scalar_one())

    async def status(self) -> OutboxStatus:
        now = database_time()
        pending = select(
            func.count(),
            func.coalesce(now - func.min(table.c.created_at), 0.0),
            func.count().filter(table.c.next_attempt_at > now),
            func.count().filter(table.c.lease_until > now),
        ).where(is_pending)
        dead = select(func.count()).select_from(table).where(in_state(DEAD))
        async with self._database.transaction(reading=True) as connection:
            count, age, waiting, claimed = (await connection.execute(pending)).one()
            died = (await connection.execute(dead)).scalar_one()
        return OutboxStatus(
            pending=count, oldest_age=max(0.0, age), waiting=waiting, claimed=claimed, dead=died
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
            .values(state=PENDING, attempts=0, next_attempt_at=0.0, claimed_by=None, lease_until=0)
        )
        async with self._database.transaction() as connection:
            return (await connection.execute(change)).rowcount

    async def clean(self, older_than: float, *, limit: int = 1000) -> int:
        """Delete rows published more than `older_than` seconds ago, `limit` a transaction;
        returns how many.

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
        own_id=uuid.uuid4().hex,
    )
