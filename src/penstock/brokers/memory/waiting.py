"""Pulls that wait for something to be available."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress


class Waiters:
    """Whoever waits, first come first woken. A wake that a cancelled pull got is passed on."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def news(self, seconds: float) -> None:
        """Return when something may be available, or after `seconds`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timeout = loop.call_later(seconds, _resolve, waiter)
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.wake(1)
            raise
        finally:
            timeout.cancel()
            with suppress(ValueError):
                self._waiting.remove(waiter)

    def wake(self, count: int) -> None:
        while count > 0 and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def wake_all(self) -> None:
        self.wake(len(self._waiting))


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
