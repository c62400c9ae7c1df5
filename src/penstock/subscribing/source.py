"""A subscription as those see it who receive for it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from penstock.broker import Broker
from penstock.clock import Clock
from penstock.message import AckResponse, Message, Settlement
from penstock.subscribing.events import Events

Handler: TypeAlias = Callable[[Message], Any]

_log = logging.getLogger("penstock")


class Source:
    """Where messages come from and who hears of them: what a handle and its streams share."""

    def __init__(
        self,
        name: str,
        *,
        broker: Callable[[], Awaitable[Broker]],
        clock: Clock,
    ) -> None:
        self.name = name
        self.clock = clock
        self.broker = broker
        """The connection, made on first use."""
        self.events = Events(f"Subscription {name!r}", ("message", "error", "close"))
        self.exactly_once: bool | None = None
        """As far as it is known; see `is_exactly_once`."""

    def listeners(self) -> list[Handler]:
        """Those who listen for messages."""
        return self.events.listeners("message")

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
