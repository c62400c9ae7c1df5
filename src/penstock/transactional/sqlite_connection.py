"""A connection to a SQLite file that lets go of it, however its users end, and costs little.

One of aiosqlite's whose statement is cancelled may keep its lock for as long as the process lives.
Python closes a connection only once nothing refers to its cursors, and a cancelled statement leaves
one behind in a traceback; and the thread of a connection ends, closing nothing, when the event loop
has ended before it. Then every process is told that the database is locked.

And of four visits to that thread for each statement, to make a cursor, execute, fetch and close,
one is enough. A visit takes as long as some rows take to be written, and waits for all that the
event loop has to do before, while nobody else can write.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Self, TypeVar
from uuid import uuid4

import aiosqlite
from aiosqlite.core import set_exception, set_result

_T = TypeVar("_T")
_Call = tuple[asyncio.Future[Any] | None, Callable[[], Any]]
_ENDED = object()
# Rows that aiosqlite fetches at a time where somebody iterates; SQLAlchemy never does.
_CHUNK = 64


class SqliteConnection(aiosqlite.Connection):
    """`prepare` is given each connection when it is opened, in its thread."""

    def __init__(
        self, path: str, prepare: Callable[[sqlite3.Connection], None], **options: Any
    ) -> None:
        super().__init__(self._open, _CHUNK)
        self._thread = Thread(target=_work, args=(self._tx,), name="penstock-sqlite", daemon=True)
        self._path, self._options, self._prepare = path, options, prepare
        self._opened: sqlite3.Connection | None = None
        self._closed: Future[None] = Future()
        self._was_left = False

    def stop(self) -> None:
        """Close it once the statement that runs has ended, which nobody needs to wait for."""
        self._connection = None
        if self._running:
            self._running = False
            self._tx.put_nowait((None, self._end))

    def cursor(self) -> Cursor:  # type: ignore[override]
        return Cursor(self._visit)

    async def rollback(self) -> None:
        # A pool rolls back whatever is returned to it, mostly after a commit.
        if self._was_left or self._conn.in_transaction:
            await super().rollback()

    async def _visit(self, call: Callable[..., _T], *arguments: Any) -> _T:
        done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((done, partial(call, self._conn, *arguments)))
        try:
            return await done
        except asyncio.CancelledError:
            # It runs all the same, and may begin a transaction yet.
            self._was_left = True
            raise

    async def close(self) -> None:
        """Returns when it is closed, also if somebody else closes it; cancelled, it is closed all
        the same."""
        self.stop()
        await asyncio.shield(asyncio.wrap_future(self._closed))

    def _open(self) -> sqlite3.Connection:
        self._opened = sqlite3.connect(self._path, **self._options)
        self._prepare(self._opened)
        return self._opened

    def _end(self) -> object:
        self._closed.set_running_or_notify_cancel()
        try:
            if self._opened is not None:
                self._opened.close()
        finally:
            self._closed.set_result(None)
        return _ENDED


class MemoryFile:
    """A database in memory that lives until it is closed. One of a connection's own is lost with
    the connection, which is closed when a statement of it is cancelled."""

    def __init__(self) -> None:
        self._name = f"file:/{uuid4()}?vfs=memdb"
        self._kept = sqlite3.connect(self._name, uri=True, check_same_thread=False)

    def connect(self, _: str, **options: Any) -> SqliteConnection:
        return SqliteConnection(self._name, **{**options, "uri": True})

    def close(self) -> None:
        self._kept.close()


class _Found(NamedTuple):
    """What a statement came to."""

    description: Any
    rowcount: int
    lastrowid: int | None
    rows: Iterator[Any]


class Cursor:
    """As much of aiosqlite's as SQLAlchemy uses. All that a statement finds is fetched at once."""

    arraysize = 1

    def __init__(self, visit: Callable[..., Awaitable[_Found]]) -> None:
        self._visit = visit
        self._found = _Found(None, -1, None, iter(()))

    async def __aenter__(self) -> Self:
        return self

    @property
    def description(self) -> Any:
        return self._found.description

    @property
    def rowcount(self) -> int:
        return self._found.rowcount

    @property
    def lastrowid(self) -> int | None:
        return self._found.lastrowid

    async def execute(self, statement: str, values: Any = ()) -> None:
        self._found = await self._visit(_executed, "execute", statement, values)

    async def executemany(self, statement: str, values: Any) -> None:
        self._found = await self._visit(_executed, "executemany", statement, values)

    async def fetchone(self) -> Any:
        return next(self._found.rows, None)

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        return list(islice(self._found.rows, size or self.arraysize))

    async def fetchall(self) -> list[Any]:
        return list(self._found.rows)

    async def close(self) -> None:
        """Whatever it had open was closed where it was opened."""


def _executed(connection: sqlite3.Connection, how: str, statement: str, values: Any) -> _Found:
    # Closed here: a connection whose cursors are not keeps its lock, whoever closes it.
    with closing(connection.cursor()) as cursor:
        getattr(cursor, how)(statement, values)
        rows = cursor.fetchall() if cursor.description else []
        return _Found(cursor.description, cursor.rowcount, cursor.lastrowid, iter(rows))


def _work(calls: SimpleQueue[_Call]) -> None:
    """The thread of a connection: call after call, until the one that ends it. Between them it
    holds on to nothing."""
    while _done(*calls.get()) is not _ENDED:
        pass


def _done(future: asyncio.Future[Any] | None, call: Callable[[], Any]) -> object:
    try:
        result = call()
    except BaseException as error:
        _tell(future, set_exception, error)
        return None
    _tell(future, set_result, result)
    return result if result is _ENDED else None


def _tell(
    future: asyncio.Future[Any] | None, answer: Callable[[Any, Any], None], result: Any
) -> None:
    if future is None:
        return
    try:
        future.get_loop().call_soon_threadsafe(answer, future, result)
    except RuntimeError:
        # Its loop is closed: nobody waits for it.
        return
