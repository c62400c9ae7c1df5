"""The relay of the driver: it sends what tasks committed and could not send themselves, and what is
to go later."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from penstock.client import PubSub
from penstock.errors import PenstockError, UnavailableError
from penstock.jobs.settings import JobSettings
from penstock.jobs.system import relaying
from penstock.jobs.telemetry import JobObservers, LoggingObserver
from penstock.retrying import Failures, Persistence, always, keep_doing
from penstock.rules.backoff import Backoff
from penstock.transactional import Database, Outbox

_log = logging.getLogger("penstock.spark")
# Tasks run in other processes and cannot wake it, but they send for themselves. To look for rows is
# to hold the lock of a SQLite file.
_POLL = 0.5
_LOOK = 0.05
# Seconds for what is being sent when the driver ends.
_ENDING = 30.0
# Whatever the trouble is: while tasks commit, somebody has to send.
_OPENING = Persistence(backoff=Backoff(initial=0.5, maximum=5.0), worth_it=always)


class DriverRelay:
    """Runs in a thread of the driver while it is entered, whatever the broker and the database do
    meanwhile."""

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="penstock-relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_ENDING)
        if self._thread.is_alive():
            _log.warning("What is committed and not yet sent is sent by whoever runs next")

    def wait_until_sent(self, within: float) -> None:
        """Until nothing is left to send but what waits for its time; an error after `within`
        seconds."""
        asyncio.run(self._until_sent(within))

    async def _until_sent(self, within: float) -> None:
        until = time.monotonic() + within
        async with Database(self._settings.database) as database:
            outbox = Outbox(database)
            while True:
                status = await outbox.status()
                left = status.pending - status.waiting
                if not left:
                    return
                if time.monotonic() > until:
                    raise UnavailableError(
                        f"{left} messages of the jobs are committed but could not be sent within "
                        f"{within:g} s; see that the broker can be reached, and start again"
                    )
                await asyncio.sleep(_LOOK)

    def _main(self) -> None:
        failures = Failures(_OPENING)
        asyncio.run(
            keep_doing(
                lambda: self._relay(on_open=failures.clear),
                failures,
                until=self._stop.is_set,
                on_failure=_tell_trouble,
                rest=lambda pause: asyncio.to_thread(self._stop.wait, pause),
            )
        )

    async def _relay(self, on_open: Callable[[], None]) -> None:
        observer = JobObservers(LoggingObserver())
        async with (
            PubSub(self._settings.url) as pubsub,
            Database(self._settings.database) as database,
            relaying(database, pubsub, observer, poll=_POLL),
        ):
            on_open()
            await asyncio.to_thread(self._stop.wait)


def _tell_trouble(error: Exception, pause: float) -> None:
    _log.warning(
        "Nothing can be sent for now; trying again in %.1f s: %s",
        *(pause, error),
        exc_info=None if isinstance(error, PenstockError | OSError) else error,
    )
