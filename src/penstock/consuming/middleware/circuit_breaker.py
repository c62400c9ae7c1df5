"""Leaving something alone that fails: nothing is called while it rests, then one, then all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from math import isfinite
from typing import Any

from penstock.config import check_duration, check_whole
from penstock.consuming.declaration import Middleware
from penstock.consuming.middleware.chain import Call, Next
from penstock.consuming.middleware.per_loop import PerLoop
from penstock.consuming.middleware.retry import Errors, classifier

_log = logging.getLogger("penstock.app")


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    TRYING = "trying"


class Circuit:
    """Closed, until `failures` in a row; open, until `rest` seconds have passed; then one may try,
    and its success closes it. Pure: time comes in as an argument."""

    def __init__(self, failures: int, rest: float) -> None:
        self._limit = failures
        self._rest = rest
        self._failures = 0
        self._opens = 0.0
        self.state = State.CLOSED

    def wait(self, now: float) -> float:
        """Seconds to wait before asking again, unless there is news; 0 to go."""
        if self.state is State.CLOSED:
            return 0.0
        if self.state is State.TRYING:
            return float("inf")
        if now < self._opens:
            return self._opens - now
        self.state = State.TRYING
        return 0.0

    def succeeded(self) -> None:
        self._failures = 0
        self.state = State.CLOSED

    def failed(self, now: float) -> None:
        self._failures += 1
        if self.state is State.TRYING or self._failures >= self._limit:
            self.state = State.OPEN
            self._opens = now + self._rest

    def gave_up(self, now: float) -> None:
        """Whoever tried cannot say whether it works again: the next may try."""
        if self.state is State.TRYING:
            self.state = State.OPEN
            self._opens = now


def circuit_breaker(*, failures: int = 5, rest: float = 30.0, on: Errors = Exception) -> Middleware:
    """After so many failures in a row (`on` says which errors count) a handler is not called for
    `rest` seconds; then once, and again as usual if that succeeded. Errors that do not count, such
    as a body that cannot be decoded, say nothing either way.

    Messages wait meanwhile: they are ours and their window is full, so nothing more is fetched and
    no delivery counts as an attempt. Each subscription has a circuit of its own.
    """
    check_whole("failures", failures, 1)
    check_duration("rest", rest, 0.001, 600)
    counts = classifier(on)
    circuits: PerLoop[dict[str, tuple[Circuit, asyncio.Event]]] = PerLoop(dict)

    async def guarded(call: Call, next: Next) -> Any:
        of = circuits.here()
        if call.subscription not in of:
            of[call.subscription] = (Circuit(failures, rest), asyncio.Event())
        circuit, news = of[call.subscription]
        clock = asyncio.get_running_loop().time
        await _turn(circuit, news, clock)
        try:
            result = await next(call)
        except BaseException as error:
            if isinstance(error, Exception) and counts(error):
                _fail(circuit, clock(), call)
            else:
                circuit.gave_up(clock())
            _tell(news)
            raise
        if all(message in call.failures for message in call.messages):  # None was done.
            circuit.gave_up(clock())
        else:
            circuit.succeeded()
        _tell(news)
        return result

    return guarded


async def _turn(circuit: Circuit, news: asyncio.Event, clock: Callable[[], float]) -> None:
    while wait := circuit.wait(clock()):
        # Also while it rests: somebody who was called before it opened may yet succeed.
        with suppress(TimeoutError):
            async with asyncio.timeout(wait if isfinite(wait) else None):
                await news.wait()


def _fail(circuit: Circuit, now: float, call: Call) -> None:
    before = circuit.state
    circuit.failed(now)
    if circuit.state is State.OPEN and before is not State.OPEN:
        _log.warning("Handler %s fails and rests: its circuit is open", call.handler)


def _tell(news: asyncio.Event) -> None:
    """Everybody who waits looks again."""
    news.set()
    news.clear()
