"""Trying again: the one loop, async and blocking, and the count of failures that loops share."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from penstock.rules.backoff import Backoff

T = TypeVar("T")

OnFailure: TypeAlias = Callable[[Exception, float], None]
"""Told each failure that is followed by another try, and the pause before it."""


def is_retryable(error: Exception) -> bool:
    """What the error says of itself; an error that says nothing is not worth another attempt."""
    return bool(getattr(error, "retryable", False))


def always(_: Exception) -> bool:
    """For what goes on whatever happens."""
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Persistence:
    """How long something is tried: with pauses by `backoff`, at most `attempts` times, and no
    attempt later than `within` seconds after the first failure. None: no such bound."""

    backoff: Backoff
    attempts: int | None = None
    within: float | None = None
    worth_it: Callable[[Exception], bool] = is_retryable

    def pause(
        self,
        failures: int,
        elapsed: float,
        error: Exception,
        chance: Callable[[], float] = random.random,
    ) -> float | None:
        """Seconds until the next try, after so many failures and seconds; None: give up."""
        if not self.worth_it(error):
            return None
        if self.attempts is not None and failures >= self.attempts:
            return None
        pause = self.backoff.delay(failures, chance)
        return None if self.within is not None and elapsed + pause > self.within else pause


class Failures:
    """Failures in a row of one thing that is tried again and again.

    For `keep_doing`, and for loops of another shape: call `pause_after` with each failure and
    `clear` after a success. Pure: time comes in as an argument.
    """

    __slots__ = ("_since", "count", "persistence")

    def __init__(self, persistence: Persistence) -> None:
        self.persistence = persistence
        self._since = 0.0
        self.count = 0

    def clear(self) -> None:
        self.count = 0

    def pause_after(
        self, error: Exception, now: float, chance: Callable[[], float] = random.random
    ) -> float | None:
        """Seconds until the next try; None: give up."""
        if self.count == 0:
            self._since = now
        self.count += 1
        return self.persistence.pause(self.count, now - self._since, error, chance)


class Outage:
    """Tells of trouble once when it begins and once when it is over, however often it is met in
    between. `what` says in a sentence what cannot be done meanwhile."""

    __slots__ = ("_log", "_met", "_what")

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._met = 0

    def met(self, error: Exception, pause: float = 0.0) -> None:  # noqa: ARG002 - an `OnFailure`
        self._met += 1
        first = self._met == 1
        self._log.log(
            logging.WARNING if first else logging.DEBUG,
            "%s; it is tried until it works: %s",
            *(self._what, error),
            # What says what is wrong with it needs no traceback; anything else is a mistake.
            exc_info=error if first and not hasattr(error, "retryable") else None,
        )

    def over(self) -> None:
        if self._met:
            self._log.info("Back again after %d attempts. It was: %s", self._met, self._what)
            self._met = 0


async def retry(
    call: Callable[[], Awaitable[T]],
    persistence: Persistence,
    *,
    on_failure: OnFailure | None = None,
) -> T:
    """What `call` returns, once it does; its last error when it is given up.

    `on_failure` is told each failure that is followed by another try, and the pause before it.
    """
    failures = Failures(persistence)
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await call()
        except Exception as error:
            pause = _pause_or_raise(failures, error, loop.time(), on_failure)
        await asyncio.sleep(pause)


async def keep_doing(
    step: Callable[[], Awaitable[object]],
    failures: Failures,
    *,
    until: Callable[[], bool] = lambda: False,
    on_failure: OnFailure | None = None,
    rest: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """`step` over and over, until `until()`: at once after a success, after a pause when it
    failed. Raises its last error when it is given up.

    A step that returns forgets the failures before it; a long one clears them itself, as soon as
    it has proven to work. `on_failure` is told each failure that is followed by another try, and
    the pause before it; `rest` is for pauses that somebody may end early.
    """
    loop = asyncio.get_running_loop()
    while not until():
        try:
            await step()
            failures.clear()
        except Exception as error:
            pause = _pause_or_raise(failures, error, loop.time(), on_failure)
            await rest(pause)


async def do_every(seconds: float, step: Callable[[], Awaitable[object]], outage: Outage) -> None:
    """`step` now and every so many seconds, whatever it raises: then sooner, and `outage` tells."""

    async def once() -> None:
        await step()
        outage.over()
        await asyncio.sleep(seconds)

    backoff = Backoff(initial=min(1.0, seconds), maximum=seconds)
    failures = Failures(Persistence(backoff=backoff, worth_it=always))
    await keep_doing(once, failures, on_failure=outage.met)


def retry_blocking(
    call: Callable[[], T],
    persistence: Persistence,
    *,
    on_failure: OnFailure | None = None,
) -> T:
    """`retry`, for code that has a thread to itself."""
    failures = Failures(persistence)
    while True:
        try:
            return call()
        except Exception as error:
            pause = _pause_or_raise(failures, error, time.monotonic(), on_failure)
        time.sleep(pause)


def _pause_or_raise(
    failures: Failures, error: Exception, now: float, on_failure: OnFailure | None
) -> float:
    pause = failures.pause_after(error, now)
    if pause is None:
        raise error
    if on_failure is not None:
        on_failure(error, pause)
    return pause
