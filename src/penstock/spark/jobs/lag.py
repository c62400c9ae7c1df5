"""How far queries are behind what they read, found out by looking at the topics.

What a query says of itself is as old as its last batch, and one that fails says nothing: that is
when somebody wants to know.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from penstock.broker import RangeLog
from penstock.errors import PenstockError, UnavailableError
from penstock.retrying import Outage
from penstock.spark.behind import together
from penstock.spark.jobs.progress import is_counted, reached, say_behind, say_spool
from penstock.spark.source.offsets import place_of

_log = logging.getLogger("penstock.spark")
_EVERY = 5.0
# The next message that is there may not be the next in number: some were deleted.
_LOOKED_AT = 100


class Lag(NamedTuple):
    """Messages that wait to be read, and the age of the oldest in seconds."""

    messages: float
    seconds: float


UNKNOWN = Lag(math.nan, math.nan)


def lag_of(log: RangeLog, topics: Sequence[str], read: Mapping[str, Any], now: float) -> Lag:
    """`read` are offsets, of topics that were read at all."""
    messages, age = 0, 0.0
    place = place_of(read)
    for topic in topics:
        extent = log.extent(topic)
        first = max(place.at.get(topic, 1), extent.first)
        if first > extent.end or not place.is_of(topic, extent):
            first = extent.first  # It was made again, and nothing of it was read.
        if first < extent.end:
            messages += extent.end - first
            for columns in log.read(topic, first, min(extent.last, first + _LOOKED_AT - 1)):
                age = max(age, now - columns.published_us[0] / 1e6)
                break
    return Lag(messages, age)


def committed(checkpoint: Path) -> dict[str, Any]:
    """Where the last batch ended that a checkpoint has as done."""
    done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not done:
        return {}
    lines = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()
    # A version and Spark's own facts come first; then a line for each source.
    return together(*lines[2:])


class Lags(Protocol):
    """What can be looked at."""

    def look(self) -> None:
        """Say how far each query is behind."""
        ...

    def close(self) -> None: ...


class TopicLags:
    """Queries that read topics.

    `topics`: those of each query. `checkpoints`: the folder that has one for each query, if the
    driver can look into it. Closes `log`.
    """

    def __init__(
        self, log: RangeLog, topics: Mapping[str, Sequence[str]], checkpoints: str
    ) -> None:
        self._log = log
        self._topics = topics
        self._checkpoints = None if "://" in checkpoints else Path(checkpoints)
        self._outages = {
            name: Outage(_log, f"How far query {name} is behind is not known") for name in topics
        }

    def look(self) -> None:
        for name, topics in self._topics.items():
            say_behind(name, *self._lag(name, topics))

    def close(self) -> None:
        self._log.close()

    def _lag(self, name: str, topics: Sequence[str]) -> Lag:
        """Not-a-number where nobody can tell: an old answer would be taken for a true one."""
        try:
            read = reached(name) or self._committed(name)
            found = UNKNOWN if read is None else lag_of(self._log, topics, read, time.time())
        except (PenstockError, OSError, ValueError) as error:
            told = error if isinstance(error, PenstockError) else UnavailableError(str(error))
            self._outages[name].met(told)
            return UNKNOWN
        self._outages[name].over()
        return found

    def _committed(self, name: str) -> dict[str, Any] | None:
        return None if self._checkpoints is None else committed(self._checkpoints / name)


class SpoolLags:
    """Queries that read through spools: what waits in those, and for how long."""

    def __init__(self, spools: Mapping[str, Sequence[Path]]) -> None:
        self._spools = spools

    def look(self) -> None:
        now = time.time()
        for name, folders in self._spools.items():
            found = [_stat(path) for folder in folders for path in folder.glob("segment-*.arrow")]
            say_spool(name, sum(size for size, _ in found))
            ages = [now - written for size, written in found if size]
            say_behind(name, math.nan, max(ages, default=0.0))

    def close(self) -> None:
        """Nothing is open."""


def _stat(path: Path) -> tuple[int, float]:
    """Size and time; nothing of what was deleted meanwhile."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0.0
    return found.st_size, found.st_mtime


class Watching:
    """Looks every few seconds while it is entered, in a thread of its own, where somebody counts.
    Closes what it looks at."""

    def __init__(self, lags: Lags) -> None:
        self._lags = lags
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="penstock-lag", daemon=True)

    def __enter__(self) -> Self:
        if is_counted():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._lags.close()

    def _main(self) -> None:
        while True:
            self._lags.look()
            if self._stop.wait(_EVERY):
                return
