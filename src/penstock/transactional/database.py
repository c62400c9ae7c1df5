"""A database that several processes share: SQLite in one file, or PostgreSQL.

Transactions are SQLAlchemy's; what is added is what makes them right by default: writers of a
SQLite file take turns, connections are as `engine.py` makes them, and whatever fails to connect
says so as a `PenstockError` without the password.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Double, MetaData, NullPool, Table, event, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from penstock.errors import (
    ClosedError,
    FailedPreconditionError,
    NotFoundError,
    PenstockError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from penstock.lifetime import AsyncClosing
from penstock.transactional.engine import address_of, is_in_memory, make_engine

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
        self._url = address_of(url)
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
        if self.dialect != "sqlite" or is_in_memory(self._url) or not path or self._url.query:
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
            self._made = make_engine(self._url, self._busy_timeout, self._pool_size)
        return self._made

    @asynccontextmanager
    async def _in_turn(self, reading: bool) -> AsyncIterator[None]:
        if self.dialect != "sqlite" or (reading and not is_in_memory(self._url)):
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


def _first_line(error: object, password: str | None) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].replace(password, "***") if password else lines[0]
