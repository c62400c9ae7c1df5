"""Events as rows of the caller's transaction, whatever kind of connection that has."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from penstock.errors import InvalidArgumentError
from penstock.message import Draft
from penstock.transactional import Database, Outbox
from penstock.transactional.commit_signals import NOTIFY, CommitSignals

Blocking: TypeAlias = Connection | Session | Engine
Transaction: TypeAlias = Blocking | AsyncConnection | AsyncSession | AsyncEngine
_DIALECTS = ("postgresql", "sqlite")


class EventOutbox:
    """The outbox of a bridge: adds events to a topic, and lets commits wake the relay."""

    def __init__(self, database: Database, topic: str) -> None:
        self.outbox = Outbox(database)
        self.signals: CommitSignals | None = None
        self.database = database
        self._topic = topic

    async def add(self, within: Transaction | None, draft: Draft) -> None:
        """Add an event to the transaction of `within`: a connection, a session, or an engine, which
        gets a transaction of its own. None: one of our own."""
        if within is None:
            async with self.database.transaction() as connection:
                await self._add(connection, draft)
        elif isinstance(within, AsyncEngine):
            async with within.begin() as connection:
                await self._add(connection, draft)
        elif isinstance(within, AsyncSession):
            await self._add(await within.connection(), draft)
        elif isinstance(within, AsyncConnection):
            await self._add(within, draft)
        else:
            # It may have to wait for a lock that somebody on this very loop holds.
            await asyncio.to_thread(self.add_blocking, within, draft)

    def add_blocking(self, within: Blocking, draft: Draft) -> None:
        """`add`, for connections and sessions that are not async."""
        if isinstance(within, Engine):
            with within.begin() as connection:
                self._add_blocking(connection, draft)
        elif isinstance(within, Session):
            self._add_blocking(within.connection(), draft)
        elif isinstance(within, Connection):
            self._add_blocking(within, draft)
        else:
            raise InvalidArgumentError(
                "connection must be SQLAlchemy's: a Connection, Session or Engine, async or not; "
                f"it is a {type(within).__name__}"
            )

    async def _add(self, connection: AsyncConnection, draft: Draft) -> None:
        _check(connection.dialect)
        await self.outbox.add(connection, self._topic, [draft])
        if connection.dialect.name == "postgresql":
            await connection.execute(NOTIFY)
        elif connection.sync_connection is not None:
            self._announce(connection.sync_connection)

    def _add_blocking(self, connection: Connection, draft: Draft) -> None:
        _check(connection.dialect)
        self.outbox.add_blocking(connection, self._topic, [draft])
        if connection.dialect.name == "postgresql":
            connection.execute(NOTIFY)
        else:
            self._announce(connection)

    def _announce(self, connection: Connection) -> None:
        if self.signals is not None:
            self.signals.announce(connection)


def _check(dialect: Any) -> None:
    if dialect.name not in _DIALECTS:
        raise InvalidArgumentError(
            f"An outbox is in PostgreSQL or SQLite, and this connection is to {dialect.name}"
        )
