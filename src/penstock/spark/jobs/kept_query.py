"""A query that is kept running: started again from its checkpoint when it fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.errors import FailedPreconditionError, UnavailableError
from penstock.retrying import Failures, Persistence, always
from penstock.rules.backoff import Backoff
from penstock.spark.jobs.progress import report, say_running
from penstock.spark.reasons import may_pass, reason_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("penstock.spark")

_RESTARTING = Persistence(backoff=Backoff(initial=0.5, maximum=30.0), attempts=21, worth_it=always)
# Seconds between two looks at what a query says of its batches.
_REPORTING = 0.5
# What Spark says when its own state is damaged: every batch fails from then on.
_BROKEN = ("Task not serializable", "SparkContext was shut down", "stopped SparkContext")
# What it says when a Python process of its own was too slow to start, or died.
_PASSING = ("CANNOT_OPEN_SOCKET", "timed out", "Python worker", "Connection refused")


class KeptQuery:
    """Started when it is made; `look` at it now and then.

    Starting may fail because the machine is busy or the broker is away, and is then tried again as
    a query is that failed; whatever else is wrong with it is raised.
    """

    def __init__(self, name: str, start: Callable[[], StreamingQuery]) -> None:
        self._name = name
        self._start = start
        self._failures = Failures(_RESTARTING)
        self._query: StreamingQuery | None = None
        self._not_before = self._next_report = 0.0
        self.lacks: str | None = None
        """What is wrong with it, from when it failed until it has ended a batch or waits for one.
        Anybody may be told: why it failed, which may name hosts, is in the log."""
        self._begin()

    @property
    def is_starting(self) -> bool:
        """The Python process that its source runs in may not be there yet."""
        query = self._query
        if query is None or not query.isActive or query.recentProgress:
            return False
        return not str(query.status["message"]).startswith(("Waiting", "Processing"))

    @property
    def is_down(self) -> bool:
        """It failed, and is to be started again."""
        return self._query is None

    def look(self, *, may_begin: bool = True) -> None:
        """`may_begin`: one that is down may be started now, if it is time."""
        query, now = self._query, time.monotonic()
        if query is None:
            if may_begin and now >= self._not_before:
                self._begin()
            return
        is_active = query.isActive
        if now >= self._next_report or not is_active:
            self._next_report = now + _REPORTING
            if report(self._name, query) or (self.lacks is not None and _waits(query)):
                self._failures.clear()
                self.lacks = None
        if not is_active:
            self._query = None
            self._failed(query.exception() or UnavailableError(f"Query {self._name} ended"))

    def end(self, drain: float) -> None:
        if self._query is not None:
            end_between_batches(self._name, self._query, drain)

    def _begin(self) -> None:
        try:
            self._query = self._start()
        except Exception as error:
            if not may_pass(error) and not any(sign in str(error) for sign in _PASSING):
                raise
            self._failed(error)
        else:
            say_running(self._name, running=True)

    def _failed(self, error: Exception) -> None:
        say_running(self._name, running=False)
        self.lacks = f"query {self._name} failed and is started again; the log says why"
        if any(sign in str(error) for sign in _BROKEN):
            raise FailedPreconditionError(
                f"Spark itself is broken and does not heal ({reason_of(error)}); start the "
                "pipeline again, it goes on where it was"
            ) from error
        now = time.monotonic()
        pause = self._failures.pause_after(error, now, lambda: 1.0)
        if pause is None:
            raise error
        self._not_before = now + pause
        _log.error(
            "Query %s failed and starts again in %.1f s: %s", self._name, pause, reason_of(error)
        )


def look_at_all(queries: Sequence[KeptQuery]) -> None:
    """Start those that are down one after the other: Spark gives the Python process of a source
    10 s to start, which no setting changes, and a busy machine that starts three at a time has none
    ready by then, however often it tries."""
    for query in queries:
        query.look(may_begin=not query.is_down or not any(one.is_starting for one in queries))


def end_all(queries: Sequence[KeptQuery], drain: float) -> None:
    """Each between two of its batches; after `drain` seconds all of them."""
    until = time.monotonic() + drain
    for query in queries:
        query.end(until - time.monotonic())


def end_between_batches(name: str, query: StreamingQuery, drain: float) -> None:
    """Stopping a query ends its tasks; so wait for a moment between two batches. One that is busy
    has none: then a batch that has only just begun is ended."""
    until, batch = time.monotonic() + drain, _batch(query)
    while query.isActive and time.monotonic() < until:
        if not _is_in_batch(query) or _batch(query) != batch:
            break
        time.sleep(0.01)
    report(name, query)
    query.stop()


def _waits(query: StreamingQuery) -> bool:
    """It runs, and has nothing to do."""
    return query.isActive and str(query.status["message"]).startswith("Waiting")


def _is_in_batch(query: StreamingQuery) -> bool:
    """Not while it asks whether there is more, which takes long where the broker is away."""
    status = query.status
    return bool(status["isTriggerActive"]) and not str(status["message"]).startswith("Getting")


def _batch(query: StreamingQuery) -> int:
    """The last that has ended."""
    last = query.lastProgress
    return -1 if last is None else int(last["batchId"])
