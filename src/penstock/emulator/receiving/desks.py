"""Who holds what: the open streams of a subscription and the messages on loan through each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from penstock.clock import Alarm, Clock
from penstock.config import SubscriptionConfig
from penstock.message import Delivery
from penstock.rules.deadlines import Deadlines
from penstock.rules.window import Window


class Holder:
    """One stream's share: how much it may hold, what it holds, and what its client has not yet
    shown to have received."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.window = Window(max_messages, max_bytes)
        self.unseen: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._room = asyncio.Event()

    def take(self, deliveries: Sequence[Delivery]) -> None:
        sizes = {delivery.ack_id: delivery.record.size for delivery in deliveries}
        self._sizes.update(sizes)
        self.unseen.update(sizes)
        self.window.take(len(sizes), sum(sizes.values()))

    def give_up(self, ack_id: str) -> None:
        size = self._sizes.pop(ack_id, None)
        if size is not None:
            self.unseen.discard(ack_id)
            self.window.release(1, size)
            self._room.set()

    @property
    def held(self) -> list[str]:
        return list(self._sizes)

    async def room(self) -> None:
        """Return once a message more may be held."""
        while self.window.full:
            self._room.clear()
            await self._room.wait()


class Desk:
    """What is on loan through the streams of one subscription, until when, and through which.

    The broker alone decides when a loan ends; this follows it, so that what ended no longer counts
    against a stream's window.
    """

    def __init__(self, config: SubscriptionConfig, clock: Clock) -> None:
        self.config = config
        """As it is now: whoever changes the subscription changes it here, too."""
        self.streams = 0
        self._clock = clock
        self._holders: dict[str, Holder] = {}
        self._ends: Deadlines[str] = Deadlines()
        self._alarm = Alarm(clock, self._on_alarm)

    def lend(self, holder: Holder, deliveries: Sequence[Delivery], seconds: float) -> None:
        holder.take(deliveries)
        ack_ids = [delivery.ack_id for delivery in deliveries]
        self._holders.update(dict.fromkeys(ack_ids, holder))
        self._until(seconds, ack_ids)

    def settled(self, ack_ids: Iterable[str]) -> None:
        for ack_id in ack_ids:
            holder = self._holders.pop(ack_id, None)
            if holder is not None:
                holder.give_up(ack_id)
                self._ends.discard(ack_id)

    def extended(self, ack_ids: Iterable[str], seconds: float) -> None:
        held = [ack_id for ack_id in ack_ids if ack_id in self._holders]
        for ack_id in held:
            self._holders[ack_id].unseen.discard(ack_id)
        if held:
            self._until(seconds, held)

    def all_ended(self) -> None:
        """The subscription was moved: nothing that was lent is anybody's any more."""
        self.settled(list(self._holders))

    def leave(self, holder: Holder) -> list[str]:
        """Its stream is over. Returns what its client never showed to have received."""
        unseen = list(holder.unseen)
        self.settled(holder.held)
        return unseen

    def _until(self, seconds: float, ack_ids: Sequence[str]) -> None:
        self._ends.add(self._clock.monotonic() + seconds, ack_ids)
        self._alarm.set(self._ends.next())

    def _on_alarm(self) -> float | None:
        for ack_id in self._ends.pop_due(self._clock.monotonic()):
            holder = self._holders.pop(ack_id, None)
            if holder is not None:
                holder.give_up(ack_id)
        return self._ends.next()

    def close(self) -> None:
        self._alarm.cancel()
