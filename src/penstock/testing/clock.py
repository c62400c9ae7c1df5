"""Virtual time: an event loop that jumps to its next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.clock import Clock

T = TypeVar("T")

# What the virtual wall clock shows when a loop starts: 2026-01-01T00:00:00Z, in nanoseconds.
START_NS = 1_767_225_600 * 1_000_000_000
# With no timer left, only a thread or a socket can wake the loop; longer than this is a hang.
_STUCK_AFTER = 10.0
_TURNS_A_NANOSECOND = 10_000


class StuckError(AssertionError):
    """Every task waits, no timer is set and nothing from outside comes: it would hang for ever."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps through a timeout: it moves the loop's time forward by it."""

    now = 0.0
    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or timeout == 0:
            # Timers ring up to a nanosecond early. Whoever then waits for the rest of it must
            # not wait for ever because time stands still while anybody is busy.
            self.turns += 1
            if self.turns > _TURNS_A_NANOSECOND:
                self.turns = 0
                self.now += 1e-9
            return ready
        if timeout is not None:
            self.now += timeout
            self.turns = 0
            return []
        ready = super().select(_STUCK_AFTER)
        if not ready:
            raise StuckError("Nothing left to run: every task waits and no timer is set")
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is virtual and moves only when there is nothing else to do.

    Code that uses the loop's timers (`asyncio.sleep`, timeouts, Penstock's `Clock`) runs unchanged
    and at once. Sockets and threads work, but time does not wait for them.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class _HurryingSelector(selectors.DefaultSelector):
    """Waits a fraction of what it is asked to."""

    speed = 1.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout / self.speed if timeout else timeout)


class HastyLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes `speed` times as fast as on the wall.

    For servers with deadlines of many seconds, spoken to over sockets: unlike virtual time it does
    not run away while somebody outside is still busy.
    """

    def __init__(self, speed: float) -> None:
        selector = _HurryingSelector()
        selector.speed = speed
        self._speed = speed
        super().__init__(selector)

    def time(self) -> float:
        return super().time() * self._speed


class VirtualClock(Clock):
    """Wall time that moves with the running loop's time; for use inside a `VirtualTimeLoop` or a
    `HastyLoop`."""

    def __init__(self, start_ns: int = START_NS) -> None:
        self._start_ns = start_ns

    def time_ns(self) -> int:
        return self._start_ns + round(self.monotonic() * 1e9)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def run_hasty(main: Coroutine[Any, Any, T], speed: float) -> T:
    """`asyncio.run` in a time that passes `speed` times as fast."""
    with asyncio.Runner(loop_factory=lambda: HastyLoop(speed)) as runner:
        return runner.run(main)


def run_real(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, under a name that says what it is not."""
    return asyncio.run(main)
