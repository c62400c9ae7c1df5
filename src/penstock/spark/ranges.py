"""The log of a broker as Spark's processes read it: patient with a broker that is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from penstock.broker import Extent, Mark, RangeLog
from penstock.columns import Columns
from penstock.connect import open_ranges
from penstock.retrying import Failures, Persistence, is_retryable, retry_blocking
from penstock.rules.backoff import Backoff

T = TypeVar("T")

_BACKOFF = Backoff(initial=0.1, maximum=2.0)


def open_patiently(url: str, patience: float, *, proven: bool = False) -> PatientRanges:
    return PatientRanges(open_ranges(url), patience, proven=proven)


class PatientRanges:
    """A range log that tries again, for up to `patience` seconds at a time.

    Until something has succeeded every failure is final, because a wrong address is not an outage;
    unless the address is `proven`: for executors, which may begin while a server is away.
    """

    def __init__(
        self,
        log: RangeLog,
        patience: float,
        *,
        proven: bool = False,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self._log = log
        self._proven = proven
        self._persistence = Persistence(backoff=backoff, within=patience, worth_it=self._may_pass)

    def extent(self, topic: str) -> Extent:
        return self._call(lambda: self._log.extent(topic))

    def first_since(self, topic: str, moment_us: int) -> int | None:
        return self._call(lambda: self._log.first_since(topic, moment_us))

    def read(
        self, topic: str, first: int, last: int, filter: str = "", *, headers: bool = False
    ) -> Iterator[Columns]:
        """Goes on where it was."""
        failures = Failures(self._persistence)
        at = first
        while True:
            try:
                for columns in self._log.read(topic, at, last, filter, headers=headers):
                    at = columns.sequences[-1] + 1
                    self._proven = True
                    failures.clear()
                    yield columns
            except Exception as error:
                pause = failures.pause_after(error, time.monotonic())
                if pause is None:
                    raise
            else:
                return
            time.sleep(pause)

    def purge(self, topic: str, before: int) -> None:
        self._call(lambda: self._log.purge(topic, before))

    def mark(self, topic: str, name: str) -> Mark | None:
        return self._call(lambda: self._log.mark(topic, name))

    def set_mark(self, topic: str, name: str, data: bytes, *, replaces: int) -> int:
        return self._call(lambda: self._log.set_mark(topic, name, data, replaces=replaces))

    def close(self) -> None:
        self._log.close()

    def _call(self, call: Callable[[], T]) -> T:
        found = retry_blocking(call, self._persistence)
        self._proven = True
        return found

    def _may_pass(self, error: Exception) -> bool:
        return self._proven and is_retryable(error)
