"""Deadlines that last as long as asked, on a broker that can only renew its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.broker import Broker, Capabilities
from penstock.clock import Alarm, Clock
from penstock.emulator.completing.passing import PassingOn
from penstock.errors import PenstockError
from penstock.message import AckResponse, Delivery, Settlement, Verb
from penstock.rules.deadlines import Deadlines

_log = logging.getLogger("penstock")


class KeptDeadlines(PassingOn):
    """Renews what is on loan until its deadline, and gives it back then.

    The broker's own deadline stays as it is: it ends the loans of an emulator that died.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        super().__init__(broker)
        self._clock = clock
        self._loans: dict[str, _Loans] = {}
        self._work: set[asyncio.Task[None]] = set()
        self.on_expired: Callable[[str, Sequence[str]], object] = lambda *_: None

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.broker.capabilities, sets_deadlines=True)

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        deliveries = await self.broker.pull(
            subscription, max_messages=max_messages, max_bytes=max_bytes, wait=wait
        )
        if deliveries:
            self._of(subscription).begin(deliveries)
        return deliveries

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        responses = await self.broker.settle(subscription, settlements)
        loans = self._of(subscription)
        for settlement, response in zip(settlements, responses, strict=True):
            if settlement.verb is Verb.EXTEND and settlement.seconds:
                if response is AckResponse.SUCCESS:
                    loans.extend(settlement.ack_id, settlement.seconds)
            else:
                loans.end(settlement.ack_id)
        return responses

    def forget(self, subscription: str) -> None:
        loans = self._loans.pop(subscription, None)
        if loans is not None:
            loans.close()
        super().forget(subscription)

    async def stop(self) -> None:
        for subscription in list(self._loans):
            self.forget(subscription)
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await super().stop()

    def _of(self, subscription: str) -> _Loans:
        loans = self._loans.get(subscription)
        if loans is None:
            loans = self._loans[subscription] = _Loans(
                self._clock, lambda old, ended: self._act(subscription, old, ended)
            )
        return loans

    def _act(self, subscription: str, old: Sequence[str], ended: Sequence[str]) -> None:
        renewals = [Settlement(ack_id, Verb.EXTEND, 1.0) for ack_id in old]
        returns = [Settlement(ack_id, Verb.NACK) for ack_id in ended]
        # One for many messages; `aclose` ends it.
        task = asyncio.get_running_loop().create_task(
            self._settle_quietly(subscription, [*renewals, *returns])
        )
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        if ended:
            self.on_expired(subscription, ended)

    async def _settle_quietly(self, subscription: str, settlements: Sequence[Settlement]) -> None:
        """What cannot be told to the broker, its own deadline does."""
        try:
            await self.broker.settle(subscription, settlements)
        except PenstockError as error:
            _log.warning("Deadlines of subscription %r: %s", subscription, error)


class _Loans:
    """Of one subscription: when each loan ends, and when the broker is to be reminded of it."""

    def __init__(self, clock: Clock, act: Callable[[Sequence[str], Sequence[str]], object]) -> None:
        self._clock = clock
        self._act = act
        self._ends: Deadlines[str] = Deadlines()
        self._reminders: Deadlines[str] = Deadlines()
        self._broker_deadline = 60.0
        self._alarm = Alarm(clock, self._on_alarm)

    def begin(self, deliveries: Sequence[Delivery]) -> None:
        self._broker_deadline = deliveries[0].ack_deadline
        now = self._clock.monotonic()
        ack_ids = [delivery.ack_id for delivery in deliveries]
        self._ends.add(now + self._broker_deadline, ack_ids)
        self._remind(now, ack_ids)

    def extend(self, ack_id: str, seconds: float) -> None:
        now = self._clock.monotonic()
        self._ends.add(now + seconds, [ack_id])
        self._remind(now, [ack_id])

    def end(self, ack_id: str) -> None:
        self._ends.discard(ack_id)
        self._reminders.discard(ack_id)

    def close(self) -> None:
        self._alarm.cancel()

    def _remind(self, now: float, ack_ids: Sequence[str]) -> None:
        # In time for a second try before the broker's own deadline.
        self._reminders.add(now + self._broker_deadline / 3, ack_ids)
        self._alarm.set(self._next())

    def _on_alarm(self) -> float | None:
        now = self._clock.monotonic()
        ended = self._ends.pop_due(now)
        for ack_id in ended:
            self._reminders.discard(ack_id)
        old = self._reminders.pop_due(now)
        if old:
            self._reminders.add(now + self._broker_deadline / 3, old)
        if old or ended:
            self._act(old, ended)
        return self._next()

    def _next(self) -> float | None:
        times = [t for t in (self._ends.next(), self._reminders.next()) if t is not None]
        return min(times, default=None)
