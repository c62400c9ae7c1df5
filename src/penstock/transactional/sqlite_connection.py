"""A connection to a SQLite file that lets go of it, however its users end.

One of aiosqlite's whose statement is cancelled may keep its lock for as long as the process lives.
Python closes a connection only once nothing refers to its cursors, and a cancelled statement leaves
one behind in a traceback; and the thread of a connection ends, closing nothing, when the event loop
has ended before it. Then every process is told that the database is locked.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any
from uuid import uuid4
from weakref import WeakSet

import aiosqlite
from aiosqlite.core import set_exception, set_result

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

    def stop(self) -> None:
        """Close it once the statement that runs has ended, which nobody needs to wait for."""
        self._connection = None
        if self._running:
            self._running = False
            self._tx.put_nowait((None, self._end))

    async def close(self) -> None:
        """Returns when it is closed, also if somebody else closes it; cancelled, it is closed all
        the same."""
        self.stop()
        await asyncio.shield(asyncio.wrap_future(self._closed))

    def _open(self) -> sqlite3.Connection:
        self._opened = sqlite3.connect(self._path, factory=_Connection, **self._options)
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


class _Connection(sqlite3.Connection):
    """Closed, it has no lock, whoever may still hold its cursors."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        made = super().cursor(*arguments, **options)
        self._cursors.add(made)
        return made

    def close(self) -> None:
        for cursor in list(self._cursors):
            cursor.close()
        super().close()


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
