"""How a database is connected to: the address that is given, and connections as they have to be.

On SQLite a transaction takes the write lock when it begins, and every commit is synced. On
PostgreSQL it reads what is committed, and a connection that lay idle is asked whether it is there.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import URL, Dialect, StaticPool, event, make_url
from sqlalchemy.exc import ArgumentError, InvalidatePoolError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from penstock.errors import InvalidArgumentError
from penstock.transactional.sqlite_connection import MemoryFile, SqliteConnection

# Earlier ones may lose a commit when two processes checkpoint a write-ahead log at once.
_WAL_IS_SAFE = sqlite3.sqlite_version_info >= (3, 51, 3)
_IDLE = 1.0
_COMMON: dict[str, Any] = {
    # Parameters are payloads.
    "hide_parameters": True,
    "json_serializer": lambda value: msgspec.json.encode(value).decode(),
    "json_deserializer": msgspec.json.decode,
}
# A peer that is gone without a word is noticed within a minute, and not after the kernel's hours.
_POSTGRESQL = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


def address_of(url: str) -> URL:
    """With the driver we use, or `InvalidArgumentError`, which shows the scheme only."""
    if not isinstance(url, str):
        raise InvalidArgumentError(f"A database's address is text, not {type(url).__name__}")
    drivers = {
        "sqlite": "sqlite+aiosqlite",
        "sqlite+aiosqlite": "sqlite+aiosqlite",
        "postgres": "postgresql+psycopg",
        "postgresql": "postgresql+psycopg",
        "postgresql+psycopg": "postgresql+psycopg",
    }
    scheme, separator, _ = url.partition("://")
    hint = "use sqlite:///path or postgresql://user@host/database"
    if scheme not in drivers:
        shown = f"{scheme}://" if separator and scheme.isidentifier() else "that address"
        raise InvalidArgumentError(f"No database for {shown}; {hint}")
    try:
        parsed = make_url(url)
        # Its driver, port and query are looked at only here.
        parsed = parsed.set(drivername=drivers[scheme])
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise InvalidArgumentError(f"That {scheme} address cannot be read; {hint}") from None
    return parsed


def is_in_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def make_engine(url: URL, busy_timeout: float, pool_size: int) -> AsyncEngine:
    """Without a connection yet. `busy_timeout` and `pool_size` are those of `Database`."""
    if url.get_backend_name() == "postgresql":
        return _postgresql(url, pool_size)
    return _sqlite(url, busy_timeout, pool_size)


def _postgresql(url: URL, pool_size: int) -> AsyncEngine:
    engine = create_async_engine(
        url,
        **_COMMON,
        pool_size=pool_size,
        max_overflow=0,
        isolation_level="READ COMMITTED",
        connect_args={k: v for k, v in _POSTGRESQL.items() if k not in url.query},
    )
    event.listen(engine.sync_engine, "checkout", _asked_when_idle(engine.dialect))
    event.listen(engine.sync_engine, "checkin", _used)
    return engine


def _sqlite(url: URL, busy_timeout: float, pool_size: int) -> AsyncEngine:
    # The driver must leave BEGIN to us: it would not take the write lock.
    arguments: dict[str, Any] = {"timeout": busy_timeout, "isolation_level": None}
    prepare = _prepared(is_in_memory(url))
    if is_in_memory(url):
        kept = MemoryFile()
        arguments["async_creator_fn"] = partial(kept.connect, prepare=prepare)
        engine = create_async_engine(url, **_COMMON, poolclass=StaticPool, connect_args=arguments)
        event.listen(engine.sync_engine, "engine_disposed", lambda _: kept.close())
    else:
        arguments["async_creator_fn"] = partial(SqliteConnection, prepare=prepare)
        engine = create_async_engine(
            url, **_COMMON, pool_size=pool_size, max_overflow=0, connect_args=arguments
        )
    event.listen(engine.sync_engine, "begin", _begun)
    return engine


def _asked_when_idle(dialect: Dialect) -> Callable[[Any, Any, Any], None]:
    """A connection that lay idle is asked whether it is still there; one that was just used need
    not be, and to ask costs as much as a statement."""

    def ask(connection: Any, record: Any, _: Any) -> None:
        if time.monotonic() - record.info.get("used", math.inf) < _IDLE:
            return
        try:
            dialect.do_ping(connection)
        except Exception:
            raise InvalidatePoolError from None

    return ask


def _used(_: Any, record: Any) -> None:
    record.info["used"] = time.monotonic()


def _prepared(in_memory: bool) -> Callable[[sqlite3.Connection], None]:
    # TRUNCATE rather than DELETE: it syncs the end of a commit, and is the faster of the two.
    journal = "wal" if _WAL_IS_SAFE else "truncate"

    def prepare(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA foreign_keys = ON").close()
        connection.execute("PRAGMA synchronous = FULL").close()
        if not in_memory:
            connection.execute(f"PRAGMA journal_mode = {journal}").close()

    return prepare


def _begun(connection: Any) -> None:
    reading = connection.get_execution_options().get("reading", False)
    if connection.info.get("reading", False) != reading:
        connection.exec_driver_sql("PRAGMA query_only = " + ("ON" if reading else "OFF"))
        connection.info["reading"] = reading
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
