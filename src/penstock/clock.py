"""Time: a clock that can be replaced, and instants that keep their nanoseconds.

Deadlines, leases and backoffs of what runs on an event loop come from `Clock.monotonic` or from
the loop itself, never from the `time` module, so a loop with virtual time makes all of them
virtual. The `time` module is for code that blocks, which has no loop, and for measuring how long
something took.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, SupportsIndex

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NS = 1_000_000_000


class Clock:
    """Monotonic seconds for deadlines, wall nanoseconds for timestamps."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def time_ns(self) -> int:
        return time.time_ns()


class PreciseTime(datetime):
    """An aware UTC `datetime` that keeps nanoseconds.

    It compares, pickles and prints with all nine digits. Arithmetic and conversion give what
    `datetime` gives, at microsecond precision.
    """

    # Methods of `datetime` that make a new instant leave this at its default.
    _below_us = 0

    @staticmethod
    def from_ns(ns: int) -> PreciseTime:
        """The instant `ns` nanoseconds after the epoch."""
        microseconds, below_us = divmod(ns, 1000)
        return _restore(_EPOCH + timedelta(microseconds=microseconds), below_us)

    @property
    def nanosecond(self) -> int:
        """Nanoseconds within the second, 0 to 999,999,999."""
        return self.microsecond * 1000 + self._below_us

    def timestamp_ns(self) -> int:
        """Whole nanoseconds since the epoch: the inverse of `from_ns`."""
        return to_ns(self)

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        if timespec not in ("auto", "nanoseconds"):
            return super().isoformat(sep, timespec)
        whole = super().isoformat(sep, "microseconds")
        return f"{whole[:26]}{self._below_us:03d}{whole[26:]}"

    def __str__(self) -> str:
        return self.isoformat(" ")

    def __repr__(self) -> str:
        return f"PreciseTime({self.isoformat()})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        whole = datetime.combine(self.date(), self.timetz())
        return _restore, (whole, self._below_us)

    def __hash__(self) -> int:
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        same = super().__eq__(other)
        if same is not True:
            return same
        return self._below_us == _below_us(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: datetime) -> bool:  # type: ignore[override]
        return super().__lt__(other) or (
            super().__eq__(other) and self._below_us < _below_us(other)
        )

    def __le__(self, other: datetime) -> bool:  # type: ignore[override]
        return not self > other

    def __gt__(self, other: datetime) -> bool:  # type: ignore[override]
        return super().__gt__(other) or (
            super().__eq__(other) and self._below_us > _below_us(other)
        )

    def __ge__(self, other: datetime) -> bool:  # type: ignore[override]
        return not self < other


def _restore(whole: datetime, below_us: int) -> PreciseTime:
    restored = PreciseTime.combine(whole.date(), whole.timetz())
    restored._below_us = below_us
    return restored


def _below_us(moment: object) -> int:
    return moment._below_us if isinstance(moment, PreciseTime) else 0


def to_ns(moment: datetime) -> int:
    """Nanoseconds since the epoch of any aware `datetime`, exactly."""
    since = moment - _EPOCH
    whole = (since.days * 86_400 + since.seconds) * NS + since.microseconds * 1000
    return whole + _below_us(moment)


class Alarm:
    """One timer for many deadlines: rings at the earliest time asked for.

    `ring` does what is due and returns when it wants to be called next, if at all. It may be
    called early, never late.
    """

    __slots__ = ("_clock", "_handle", "_ring", "_when")

    def __init__(self, clock: Clock, ring: Callable[[], float | None]) -> None:
        self._clock = clock
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._when = 0.0

    def set(self, when: float | None) -> None:
        """Ring at `when`, or earlier if that was asked for before. None asks for nothing."""
        if when is None or (self._handle is not None and self._when <= when):
            return
        self.cancel()
        self._when = when
        delay = max(0.0, when - self._clock.monotonic())
        self._handle = asyncio.get_running_loop().call_later(delay, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def catch_up(self, now: float) -> None:
        """Ring if it should have rung before: who stood still may be asked something else
        first."""
        if self._handle is not None and self._when < now:
            self._handle.cancel()
            self._fire()

    def _fire(self) -> None:
        self._handle = None
        self.set(self._ring())
