"""Telling a relay that something was committed, so that it looks now rather than at its next poll.

Within a process a commit calls the relay. Between processes PostgreSQL carries a notification,
which it sends if and when the transaction commits. A signal that is lost costs a poll and nothing
else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable

from sqlalchemy import Connection, event, text

from penstock.errors import PenstockError
from penstock.retrying import Failures, Persistence, always, keep_doing
from penstock.rules.backoff import Backoff
from penstock.transactional.database import Database

_log = logging.getLogger("penstock")
CHANNEL = "penstock_outbox"
NOTIFY = text(f"SELECT pg_notify('{CHANNEL}', '')")
_AGAIN = Persistence(backoff=Backoff(initial=0.2, maximum=10.0), worth_it=always)


class CommitSignals:
    """Calls `wake` on the event loop it was made on when a transaction that was announced here
    commits, whichever thread commits it, and when another process says so.

    `start` it to hear of other processes; on SQLite it hears of none.
    """

    def __init__(self, database: Database, wake: Callable[[], None]) -> None:
        self._database = database
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._pid = os.getpid()
        self._listening: asyncio.Task[None] | None = None
        self._watched: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._announced: weakref.WeakSet[Connection] = weakref.WeakSet()
        self.heard = asyncio.Event()
        """Set once it listens."""

    def announce(self, connection: Connection) -> None:
        """Let the commit of this connection's transaction wake the relay. One of another database
        does too, for nothing."""
        self._announced.add(connection)
        if connection not in self._watched:
            self._watched.add(connection)
            event.listen(connection, "commit", self._committed)

    def start(self) -> None:
        """Listen to other processes."""
        if self._listening is None and self._database.dialect == "postgresql":
            # Owned here; `aclose` cancels it.
            self._listening = self._loop.create_task(self._listen())

    async def aclose(self) -> None:
        task, self._listening = self._listening, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _committed(self, connection: Connection) -> None:
        if connection not in self._announced:
            return
        self._announced.discard(connection)
        # The database's own commit comes after this, and the relay has to wait for it: on SQLite
        # by the write lock, on PostgreSQL by the notification.
        if self._pid != os.getpid():
            return  # A child of a fork: the relay is its parent's.
        if threading.get_ident() == self._thread:
            self._wake()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    async def _listen(self) -> None:
        failures = Failures(_AGAIN)

        async def listen() -> None:
            async for _ in self._database.listen(CHANNEL):
                failures.clear()
                self.heard.set()
                self._wake()
            raise PenstockError("the connection ended")

        def tell(error: Exception, _: float) -> None:
            if failures.count == 1:
                _log.warning("Commits are found by polling, as listening failed: %s", error)

        await keep_doing(listen, failures, on_failure=tell)
