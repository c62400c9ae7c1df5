"""Events as rows of the caller's transaction, whatever kind of connection that has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine, and_, case, not_, select
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
)
from sqlalchemy.orm import Session, scoped_session

from penstock.bridge.envelope import MalformedEventError, parse
from penstock.config import check_whole
from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.message import Draft
from penstock.transactional import Database, Outbox, OutboxStatus, database_time
from penstock.transactional.commit_signals import NOTIFY, CommitSignals
from penstock.transactional.outbox_table import DEAD, PUBLISHED, in_state, is_pending, table

Blocking: TypeAlias = Connection | Session | scoped_session[Any] | Engine
Transaction: TypeAlias = (
    Blocking | AsyncConnection | AsyncSession | async_scoped_session[Any] | AsyncEngine
)
_DIALECTS = ("postgresql", "sqlite")
_is_claimed = table.c.lease_until > database_time()
# A failure that nobody expected is told apart from a refusal.
_was_unexpected = table.c.last_error.like("InternalError:%")
STATES = {
    "pending": and_(is_pending, not_(_is_claimed)),
    "publishing": and_(is_pending, _is_claimed),
    "sent": in_state(PUBLISHED),
    "failed": and_(in_state(DEAD), not_(_was_unexpected)),
    "exception": and_(in_state(DEAD), _was_unexpected),
}
"""The states of an event in the outbox, in the words of the bridge's specification."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxRow:
    """An event in the outbox, without its payload. `id` is for `requeue`."""

    id: int
    event_id: str
    event_type: str
    resource_type: str
    resource_id: str
    status: str
    attempts: int
    created_at: float
    published_at: float | None
    error_message: str | None


class EventOutbox:
    """The outbox of a bridge: adds events to a topic, and lets commits wake the relay."""

    def __init__(self, database: Database, topic: str) -> None:
        self.outbox = Outbox(database)
        self.signals: CommitSignals | None = None
        self.database = database
        self._topic = topic

    async def add(self, within: Transaction | None, draft: Draft, *, revive: bool = False) -> None:
        """Add an event to the transaction of `within`: a connection, a session, or an engine, which
        gets a transaction of its own. None: one of our own. `revive`: one of the same id that
        failed is published after all."""
        if isinstance(within, scoped_session | async_scoped_session):
            # Here, and not in another thread, where it stands for another session.
            session: Session | AsyncSession = within()
            await self.add(session, draft, revive=revive)
            return
        if within is None:
            async with self.database.transaction() as connection:
                await self._add(connection, draft, revive)
        elif isinstance(within, AsyncEngine):
            async with within.begin() as connection:
                await self._add(connection, draft, revive)
        elif isinstance(within, AsyncSession):
            await self._add(await within.connection(), draft, revive)
        elif isinstance(within, AsyncConnection):
            await self._add(within, draft, revive)
        else:
            # It may have to wait for a lock that somebody on this very loop holds.
            await asyncio.to_thread(self.add_blocking, within, draft, revive=revive)

    def add_blocking(self, within: Blocking, draft: Draft, *, revive: bool = False) -> None:
        """`add`, for connections and sessions that are not async."""
        if isinstance(within, scoped_session):
            within = within()
        if isinstance(within, Engine):
            with within.begin() as connection:
                self._add_blocking(connection, draft, revive)
        elif isinstance(within, Session):
            self._add_blocking(within.connection(), draft, revive)
        elif isinstance(within, Connection):
            self._add_blocking(within, draft, revive)
        else:
            raise InvalidArgumentError(
                "connection must be SQLAlchemy's: a Connection, Session or Engine, async or not; "
                f"it is a {type(within).__name__}"
            )

    async def status(self) -> OutboxStatus:
        """Of this bridge's rows."""
        return await self.outbox.status(self._topic)

    async def rows(self, status: str | None = None, *, limit: int = 100) -> list[OutboxRow]:
        """The newest events, or those of one status."""
        check_whole("limit", limit, 1)
        if status is not None and status not in STATES:
            raise InvalidArgumentError(f"No status {status!r}; there are {', '.join(STATES)}")
        c = table.c
        named = case(*((condition, name) for name, condition in STATES.items()))
        query = (
            select(
                c.id,
                c.message_id,
                c.data,
                named.label("status"),
                c.attempts,
                c.created_at,
                c.published_at,
                c.last_error,
            )
            .where(c.topic == self._topic)
            .order_by(c.id.desc())
            .limit(limit)
        )
        if status is not None:
            query = query.where(STATES[status])
        async with self.database.transaction(reading=True) as connection:
            return [_row(row) for row in await connection.execute(query)]

    async def _add(self, connection: AsyncConnection, draft: Draft, revive: bool) -> None:
        _check(connection.dialect)
        with _told():
            await self.outbox.add(connection, self._topic, [draft], revive=revive)
        if connection.dialect.name == "postgresql":
            await connection.execute(NOTIFY)
        elif connection.sync_connection is not None:
            self._announce(connection.sync_connection)

    def _add_blocking(self, connection: Connection, draft: Draft, revive: bool) -> None:
        _check(connection.dialect)
        with _told():
            self.outbox.add_blocking(connection, self._topic, [draft], revive=revive)
        if connection.dialect.name == "postgresql":
            connection.execute(NOTIFY)
        else:
            self._announce(connection)

    def _announce(self, connection: Connection) -> None:
        if self.signals is not None:
            self.signals.announce(connection)


@contextmanager
def _told() -> Iterator[None]:
    """A connection to a database without our table: whose, and what to do."""
    try:
        yield
    except (OperationalError, ProgrammingError) as error:
        if table.name not in str(error.orig):
            raise
        reason = str(error.orig).strip().partition("\n")[0]
        raise FailedPreconditionError(
            f"The outbox of this connection's database cannot be used: {reason}. Start the bridge "
            "first, or run: penstock db upgrade --part outbox --database ADDRESS; and give a "
            "connection to the bridge's own database_url"
        ) from None


def _check(dialect: Any) -> None:
    if dialect.name not in _DIALECTS:
        raise InvalidArgumentError(
            f"An outbox is in PostgreSQL or SQLite, and this connection is to {dialect.name}"
        )


def _row(row: Any) -> OutboxRow:
    try:
        event = parse(bytes(row.data))
        said = (event.event_type, event.resource_type, event.resource_id)
    except MalformedEventError:
        said = ("", "", "")
    return OutboxRow(
        id=row.id,
        event_id=row.message_id,
        event_type=said[0],
        resource_type=said[1],
        resource_id=said[2],
        status=row.status,
        attempts=row.attempts,
        created_at=row.created_at,
        published_at=row.published_at,
        error_message=row.last_error,
    )
