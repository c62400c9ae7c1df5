"""A subscription that is kept open: whatever ends it but us, it is opened again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Self

from penstock.errors import ClosedError
from penstock.lifetime import AsyncClosing
from penstock.message import Message
from penstock.retrying import Failures, Outage, Persistence, always
from penstock.rules.backoff import Backoff
from penstock.subscribing import Subscription

_log = logging.getLogger("penstock.jobs")
_LOOK = 1.0
# Seconds without an error after which an outage is over: while it lasts, pulls fail more often.
_QUIET = 30.0
_REOPEN = Backoff(initial=1.0, maximum=30.0)


class Listener(AsyncClosing):
    """Calls `handle` with the messages of a subscription while it is entered.

    A subscription that ends by itself, because it was deleted for instance, is opened again until
    it can be. Leaving takes nothing more, lets what runs finish within `drain` seconds, and gives
    back the rest.
    """

    def __init__(
        self,
        subscription: Subscription,
        handle: Callable[[Message], Awaitable[None]],
        *,
        name: str,
        drain: float = 10.0,
    ) -> None:
        self.subscription = subscription
        self._handle = handle
        self._name = name
        self._drain = drain
        self._watching: asyncio.Task[None] | None = None
        self._outage = Outage(_log, f"{name} cannot receive from {subscription.name!r}")
        self._erred = 0.0
        subscription.on("message", handle)
        subscription.on("error", self._on_error)

    async def __aenter__(self) -> Self:
        self.subscription.open()
        # Owned here: `aclose` ends it.
        self._watching = asyncio.get_running_loop().create_task(self._keep_open())
        return self

    async def aclose(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        await self.subscription.close(timeout=self._drain, nack_waiting=True)
        self.subscription.off("message", self._handle)
        self.subscription.off("error", self._on_error)

    async def _keep_open(self) -> None:
        loop = asyncio.get_running_loop()
        failures = Failures(Persistence(backoff=_REOPEN, worth_it=always))
        pause = min(_LOOK, _REOPEN.initial)
        while True:
            await asyncio.sleep(pause)
            if self.subscription.is_open:
                failures.clear()
                if loop.time() - self._erred > _QUIET:
                    self._outage.over()
                pause = min(_LOOK, _REOPEN.initial)
                continue
            ended = ClosedError(f"Subscription {self.subscription.name!r} ended")
            pause = failures.pause_after(ended, loop.time(), lambda: 1.0) or 0.0
            _log.error(
                "Subscription %r of %s ended; opening it again. Is it still there?",
                *(self.subscription.name, self._name),
            )
            self.subscription.open()

    def _on_error(self, error: Exception) -> None:
        self._erred = asyncio.get_running_loop().time()
        self._outage.met(error)


class Listeners:
    """Several, entered and left together: a stage has one for each topic."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for listener in self.listeners:
            await self._entered.enter_async_context(listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._entered.aclose()
