"""Closing: let what is in hand finish, give back the rest, and say what was left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.message import Message
from penstock.subscribing.deliveries import Deliveries

# Closing may take this much longer than asked, to send the last settlements and to let
# cancelled handlers clean up.
_GRACE = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CloseReport:
    """What closing left, by message id. What was not settled will be delivered again.

    `given_back`: never started. `expired`: not settled before their deadline. `unfinished`: still
    in flight when time ran out. `cancelled`: messages whose handlers were cancelled, settled or
    not. `unsent`: settlements that could not be sent.
    """

    given_back: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    unsent: int = 0

    @property
    def clean(self) -> bool:
        """Everything that was started was settled, and the broker knows."""
        return not (self.expired or self.unfinished or self.cancelled or self.unsent)

    def __add__(self, other: CloseReport) -> CloseReport:
        return CloseReport(
            given_back=self.given_back + other.given_back,
            expired=self.expired + other.expired,
            unfinished=self.unfinished + other.unfinished,
            cancelled=self.cancelled + other.cancelled,
            unsent=self.unsent + other.unsent,
        )


class Closing:
    """The end of one stream's deliveries, once nothing is pulled any more.

    It waits until everything is settled or has expired, unless it is told to `hurry`; then it
    cancels and gives back. It can be told things before and while it runs.
    """

    def __init__(self, deliveries: Deliveries, clock: Clock) -> None:
        self._deliveries = deliveries
        self._clock = clock
        self._end_by: float | None = None
        self._spared: set[Message] = set()
        self._given_back: list[str] = []
        self._expired: list[str] = []

    def hurry(self, timeout: float) -> None:
        """End within `timeout` seconds from now, if not before."""
        end_by = self._clock.monotonic() + max(0.0, timeout)
        self._end_by = end_by if self._end_by is None else min(end_by, self._end_by)
        self._deliveries.changed()

    def spare(self, messages: Iterable[Message]) -> None:
        """Their handler waits for the closing: waiting for that handler would last for ever."""
        self._spared.update(messages)
        self._deliveries.changed()

    def give_back_waiting(self) -> None:
        self._given_back += self._deliveries.give_back_waiting()

    async def run(self) -> CloseReport:
        deliveries = self._deliveries
        deliveries.note_expired(self._expired)
        deliveries.changed()
        await self._wait_for_handlers()
        self.give_back_waiting()
        unfinished = [message.id for message in deliveries.messages()]
        cancelled = await deliveries.abandon(self._spared, _GRACE)
        unsent = await deliveries.sent(_GRACE)
        deliveries.close()
        return CloseReport(
            given_back=tuple(self._given_back),
            expired=tuple(self._expired),
            unfinished=tuple(unfinished),
            cancelled=tuple(cancelled),
            unsent=unsent,
        )

    async def _wait_for_handlers(self) -> None:
        """Until nothing is in flight or time is up. What nobody will take is given back. A handler
        that goes on after its message is settled or has expired gets one more ack deadline to
        end."""
        handlers_until: float | None = None
        while True:
            if self._deliveries.taken_by_nobody:
                self.give_back_waiting()
            now = self._clock.monotonic()
            leased, running = self._deliveries.unfinished(self._spared)
            if self._deliveries.leaving or not (leased or running):
                return
            limits = [self._end_by] if self._end_by is not None else []
            if not leased:
                handlers_until = handlers_until or now + self._deliveries.ack_deadline
                limits.append(handlers_until)
            remaining = min(limits) - now if limits else None
            if remaining is not None and remaining <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._deliveries.change()
