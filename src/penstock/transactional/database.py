"""A database that several processes share: SQLite in one file, or PostgreSQL.

Transactions are SQLAlchemy's; what is added is what makes them right by default: SQLite takes its
write lock when a transaction begins and syncs every commit, PostgreSQL reads what is committed,
and whatever fails to connect says so as a `PenstockError` without the password.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec
from sqlalchemy import (
    URL,
    Dialect,
    Double,
    MetaData,
    NullPool,
    StaticPool,
    Table,
    event,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    InvalidatePoolError,
    NoSuchModuleError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from penstock.errors import (
    ClosedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from penstock.lifetime import AsyncClosing
from penstock.transactional.sqlite_connection import MemoryFile, SqliteConnection

# Earlier ones may lose a commit when two processes checkpoint a write-ahead log at once.
_WAL_IS_SAFE = sqlite3.sqlite_version_info >= (3, 51, 3)
_IDLE = 1.0
# A peer that is gone without a word is noticed within a minute, and not after the kernel's hours.
_POSTGRESQL = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
# SQLite has no states, only words.
_AWAY = ("unable to open database file", "is locked", "disk is full", "disk I/O error")
_REFUSED = ("authentication failed", "no password supplied")
_READ_ONLY = "write a readonly database"
# Any number will do, as long as every Penstock process uses the same.
_SCHEMA_LOCK = 0x70656E73746F636B


class database_time(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """The database's own clock in SQL: seconds since the epoch."""

    type = Double()
    inherit_cache = True


@compiles(database_time, "sqlite")
def _sqlite_time(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_time, "postgresql")
def _postgresql_time(*_: Any, **__: Any) -> str:
    # As a query of its own it is asked once a statement, not once a row, and indexes can be used.
    return "(SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision))"


def insert_into(connection: AsyncConnection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can say ON CONFLICT, in the words of the connection's database."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


class CommitGuard:
    """While it is entered, a commit of the connection's transaction takes it back instead, and
    raises `refusal`: for code that may write in a transaction and must not end it."""

    def __init__(self, connection: AsyncConnection, refusal: Callable[[], Exception]) -> None:
        self._refusal = refusal
        self._entered = False
        event.listen(connection.sync_connection, "commit", self._on_commit)

    def __enter__(self) -> None:
        self._entered = True

    def __exit__(self, *_: object) -> None:
        self._entered = False

    def _on_commit(self, connection: Any) -> None:
        if self._entered:
            # SQLAlchemy takes the transaction for ended, whatever is raised: so it has to be.
            connection.connection.rollback()
            raise self._refusal()


class Database(AsyncClosing):
    """One database, and the connections to it.

    `sqlite:///path`, `sqlite://` (in memory, one connection) or `postgresql://…`. Use it with
    `async with`, or `await Database.open(url)` and `await database.aclose()`.

    `busy_timeout`: seconds to wait for another writer of a SQLite file. `pool_size`: connections
    kept open; a transaction beyond them waits. `create`: a SQLite file that is not there is made.
    """

    def __init__(
        self, url: str, *, busy_timeout: float = 10.0, pool_size: int = 5, create: bool = True
    ) -> None:
        self._url = _normalised(url)
        self._create = create
        self._busy_timeout = busy_timeout
        self._pool_size = pool_size
        self._made: AsyncEngine | None = None
        self._closed = False
        # Writers of one process queue here; SQLite would let them sleep and try again.
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, url: str, **options: Any) -> Self:
        """Connected, or an error that says why not."""
        database = cls(url, **options)
        return await database.__aenter__()

    async def __aenter__(self) -> Self:
        try:
            await self._look()
            await self.ping()
        except BaseException:
            await self.aclose()
            raise
        return self

    def __repr__(self) -> str:
        return f"<Database {self.place}>"

    @property
    def dialect(self) -> str:
        """'sqlite' or 'postgresql'."""
        return self._url.get_backend_name()

    @property
    def place(self) -> str:
        """Where it is, without user and password."""
        if self.dialect == "sqlite":
            return f"sqlite {self._url.database or 'in memory'}"
        port = f":{self._url.port}" if self._url.port else ""
        return f"postgresql {self._url.host or 'local'}{port}/{self._url.database or ''}"

    @asynccontextmanager
    async def transaction(self, *, reading: bool = False) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction: committed when the block succeeds, else rolled back.

        On SQLite it holds the write lock from its beginning, so it never fails half way because
        of another writer; do not begin another inside it. `reading` takes no write lock, and
        writing in it fails.
        """
        engine = self._engine()
        with self._translated(writing=not reading):
            async with self._in_turn(reading):
                if reading:
                    engine = engine.execution_options(postgresql_readonly=True, reading=True)
                async with engine.begin() as connection:
                    yield connection

    async def create_tables(self, metadata: MetaData) -> None:
        """Create what is missing. Safe to repeat, and when several processes start together."""
        async with self.schema_transaction() as connection:
            await connection.run_sync(metadata.create_all)

    @asynccontextmanager
    async def schema_transaction(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that changes tables, one at a time among all processes."""
        async with self.transaction() as connection:
            await self.lock(connection, _SCHEMA_LOCK)
            yield connection

    async def lock(
        self,
        connection: AsyncConnection,
        number: int,
        *,
        shared: bool = False,
        lazily: bool = False,
    ) -> None:
        """Hold a lock of that number until the transaction ends. On SQLite it does already.

        `lazily`: the commit is not waited for until it is on disk; a crash of the database may
        take it back.
        """
        if self.dialect == "postgresql":
            function = "pg_advisory_xact_lock" + ("_shared" if shared else "")
            also = ", set_config('synchronous_commit', 'off', true)" if lazily else ""
            await connection.execute(
                text(f"SELECT {function}(CAST(:number AS bigint)){also}"), {"number": number}
            )

    async def time(self, connection: AsyncConnection | None = None) -> float:
        """The database's clock, in seconds since the epoch."""
        if connection is not None:
            return float((await connection.execute(select(database_time()))).scalar_one())
        async with self.transaction(reading=True) as fresh:
            return await self.time(fresh)

    async def listen(self, channel: str) -> AsyncIterator[None]:
        """Yields once it listens, and again after each `pg_notify` of that channel. PostgreSQL
        only; on a connection of its own. Ends with an error when that is lost."""
        if self.dialect != "postgresql":
            raise UnimplementedError(f"{self.place} cannot notify; only PostgreSQL can")
        engine = create_async_engine(self._url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        try:
            with self._translated():
                async with engine.connect() as connection:
                    await connection.execute(text(f'LISTEN "{channel}"'))
                    raw: Any = (await connection.get_raw_connection()).driver_connection
                    yield
                    async for _ in raw.notifies():
                        yield
        finally:
            await engine.dispose()

    async def ping(self) -> None:
        """Raises when the database cannot be reached."""
        await self.time()

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        self._closed = True
        engine, self._made = self._made, None
        if engine is not None:
            await engine.dispose()

    async def _look(self) -> None:
        """Fail here if the file cannot be opened: a failed attempt of aiosqlite leaves a thread
        that speaks up later, perhaps to a loop that is closed by then."""
        path = self._url.database
        if self.dialect != "sqlite" or _in_memory(self._url) or not path or self._url.query:
            return
        if not self._create and not await asyncio.to_thread(Path(path).exists):
            raise NotFoundError(f"There is no database ({self.place}); is that the right path?")
        try:
            is_other = await asyncio.to_thread(_is_something_else, path)
        except sqlite3.OperationalError as error:
            raise UnavailableError(
                f"Cannot use the database ({self.place}): {error}; is its folder there, and ours?"
            ) from None
        if is_other:
            raise FailedPreconditionError(
                f"The file is no database ({self.place}); is that the right path?"
            )

    def _engine(self) -> AsyncEngine:
        if self._closed:
            raise ClosedError(f"The database is closed ({self.place}); open it again")
        if self._made is None:
            self._made = _engine(self._url, self._busy_timeout, self._pool_size)
        return self._made

    @asynccontextmanager
    async def _in_turn(self, reading: bool) -> AsyncIterator[None]:
        if self.dialect != "sqlite" or (reading and not _in_memory(self._url)):
            yield
            return
        try:
            async with asyncio.timeout(self._busy_timeout):
                await self._turn.acquire()
        except TimeoutError:
            raise UnavailableError(
                f"Another transaction of this process kept the database ({self.place}) for more "
                f"than {self._busy_timeout:g} s; make transactions short, and do not begin one "
                "inside another"
            ) from None
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def _translated(self, *, writing: bool = True) -> Iterator[None]:
        """What is about the connection becomes ours; errors of the caller's SQL stay theirs."""
        try:
            yield
        except PoolTimeoutError:
            raise ResourceExhaustedError(
                f"All {self._pool_size} connections to the database ({self.place}) are in use"
            ) from None
        except DBAPIError as error:
            ours = self._ours(error, writing=writing)
            if ours is None:
                raise
            # Not `from error`: drivers may quote the address they were given.
            raise ours from None

    @contextmanager
    def own_statements(self, what: str) -> Iterator[None]:
        """Around statements on tables of ours: whatever the database refuses but the values that it
        was given says something about the database, and becomes a `PenstockError`."""
        try:
            with self._translated():
                yield
        except (DataError, IntegrityError):
            raise
        except DBAPIError as error:
            reason = _first_line(error.orig, self._url.password)
            raise FailedPreconditionError(
                f"The {what} in {self.place} cannot be used: {reason}; see: penstock db status"
            ) from None

    def is_away(self, error: BaseException) -> bool:
        """Whether it is an error of a statement that says that nothing can be written now."""
        if not isinstance(error, DBAPIError) or _met_another(error):
            return False
        return isinstance(self._ours(error), UnavailableError)

    def _ours(self, error: DBAPIError, *, writing: bool = True) -> PenstockError | None:
        state = getattr(error.orig, "sqlstate", None) or ""
        reason = _first_line(error.orig, self._url.password)
        # A connection that was refused has no state, only words.
        if state.startswith("28") or any(words in reason for words in _REFUSED):
            return UnauthenticatedError(f"The database ({self.place}) refused us: {reason}")
        if state == "3D000" or (not state and reason.endswith("does not exist")):
            return NotFoundError(f"No such database ({self.place}): {reason}; create it first")
        if _met_another(error):
            return UnavailableError(f"The transaction met another one; run it again: {reason}")
        lost = error.connection_invalidated or (not state and self.dialect == "postgresql")
        down = state[:2] in ("08", "53", "57") or any(words in reason for words in _AWAY)
        # After a failover the old primary only reads; so does a file that is not ours.
        down = down or (writing and (state == "25006" or _READ_ONLY in reason))
        kinds = OperationalError | InterfaceError | InternalError
        if isinstance(error, kinds) and (lost or down):
            return UnavailableError(f"Cannot use the database ({self.place}): {reason}")
        return None


def _met_another(error: DBAPIError) -> bool:
    """A serialization failure or a deadlock: as good as never begun."""
    return getattr(error.orig, "sqlstate", None) in ("40001", "40P01")


def _normalised(url: str) -> URL:
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


def _is_something_else(path: str) -> bool:
    """Whether there is a file, and it is not SQLite's. SQLite is asked: a process that opens the
    file by other means and closes it loses all locks that it has on it."""
    connection = sqlite3.connect(path, timeout=0.0)
    try:
        connection.execute("PRAGMA schema_version").close()
    except sqlite3.OperationalError:  # Somebody writes, or what is wrong is told to who uses it.
        return False
    except sqlite3.DatabaseError:
        return True
    finally:
        connection.close()
    return False


def _in_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def _engine(url: URL, busy_timeout: float, pool_size: int) -> AsyncEngine:
    common: dict[str, Any] = {
        # Parameters are payloads.
        "hide_parameters": True,
        "json_serializer": lambda value: msgspec.json.encode(value).decode(),
        "json_deserializer": msgspec.json.decode,
    }
    if url.get_backend_name() == "postgresql":
        engine = create_async_engine(
            url,
            **common,
            pool_size=pool_size,
            max_overflow=0,
            isolation_level="READ COMMITTED",
            connect_args={k: v for k, v in _POSTGRESQL.items() if k not in url.query},
        )
        event.listen(engine.sync_engine, "checkout", _asked_when_idle(engine.dialect))
        event.listen(engine.sync_engine, "checkin", _used)
        return engine
    # The driver must leave BEGIN to us: it would not take the write lock.
    arguments: dict[str, Any] = {"timeout": busy_timeout, "isolation_level": None}
    prepare = _prepared(_in_memory(url))
    if _in_memory(url):
        kept = MemoryFile()
        arguments["async_creator_fn"] = partial(kept.connect, prepare=prepare)
        engine = create_async_engine(url, **common, poolclass=StaticPool, connect_args=arguments)
        event.listen(engine.sync_engine, "engine_disposed", lambda _: kept.close())
    else:
        arguments["async_creator_fn"] = partial(SqliteConnection, prepare=prepare)
        engine = create_async_engine(
            url, **common, pool_size=pool_size, max_overflow=0, connect_args=arguments
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


def _first_line(error: object, password: str | None) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].replace(password, "***") if password else lines[0]
