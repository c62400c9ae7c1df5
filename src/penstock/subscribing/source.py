"""A subscription as those see it who receive for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from penstock.broker import Broker
from penstock.clock import Clock
from penstock.message import AckResponse, Message, Settlement
from penstock.observing.observed import observed_handler
from penstock.observing.observer import Observer
from penstock.subscribing.events import Events

Handler: TypeAlias = Callable[[Message], Any]

_log = logging.getLogger("penstock")


@runtime_checkable
class GoesOn(Protocol):
    """A handler that returns at once, and goes on with its messages on tasks of its own."""

    def messages_on(self, task: asyncio.Task[Any] | None) -> Collection[Message]:
        """Those that it handles on this task."""


class Source:
    """Where messages come from and who hears of them: what a handle and its streams share."""

    def __init__(
        self,
        name: str,
        *,
        topic: str | None,
        broker: Callable[[], Awaitable[Broker]],
        clock: Clock,
        observer: Observer | None = None,
    ) -> None:
        self.name = name
        self._topic = topic
        self.observer = observer
        """Who is told of calls of its listeners, if anybody."""
        self.clock = clock
        self.broker = broker
        """The connection, made on first use."""
        self.events = Events(f"Subscription {name!r}", ("message", "error", "close"))
        self.exactly_once: bool | None = None
        """As far as it is known; see `is_exactly_once`."""

    def listeners(self) -> list[Handler]:
        """Those who listen for messages."""
        listeners = self.events.listeners("message")
        if self.observer is None:
            return listeners
        return [
            observed_handler(self.observer, self._topic, self.name, listener)
            for listener in listeners
        ]

    def report(self, error: BaseException) -> None:
        """Emit 'error'; what nobody listens for is logged."""
        if not self.events.listeners("error"):
            _log.error("Subscription %r: %s", self.name, error, exc_info=error)
        self.events.emit("error", error)

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[AckResponse]:
        broker = await self.broker()
        return await broker.settle(self.name, settlements)

    async def is_exactly_once(self) -> bool:
        """What was asked for, or else what the broker says."""
        if self.exactly_once is None:
            status = await (await self.broker()).admin.describe_subscription(self.name)
            self.exactly_once = status.config.enable_exactly_once_delivery
        return self.exactly_once
