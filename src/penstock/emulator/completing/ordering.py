"""One message of an ordering key at a time, on a broker that sends them ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from penstock.broker import Capabilities
from penstock.clock import Alarm, Clock
from penstock.config import SubscriptionConfig
from penstock.emulator.completing.deadlines import KeptDeadlines
from penstock.emulator.completing.passing import PassingOn
from penstock.message import AckResponse, Delivery, Message, Settlement, Verb
from penstock.subscribing.ordering import KeyOrder

# What waits behind another of its key is ours for as long as Google lets anything be.
_PARKED = 600.0
# Of those, at most so many: a single busy key must not bring the whole backlog here.
_MOST_PARKED = 1000
_SLACK = 30.0
_FIRST_BYTES = 2**28
# How long a pull may outlive those who asked for it.
_WAIT = 2.0
# Whoever does not wait at all still gets what the broker has.
_AT_LEAST = 0.25


class KeptOrder(PassingOn):
    """For subscriptions that ask for it; others are passed on as they are."""

    def __init__(self, broker: KeptDeadlines, clock: Clock) -> None:
        super().__init__(broker)
        self._clock = clock
        self._queues: dict[str, OrderedQueue | None] = {}
        broker.on_expired = self._on_expired

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.broker.capabilities, ordering=True)

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        queue = await self._queue(subscription)
        if queue is None:
            return await super().pull(
                subscription, max_messages=max_messages, max_bytes=max_bytes, wait=wait
            )
        return await queue.pull(max_messages, max_bytes, wait)

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        responses = await super().settle(subscription, settlements)
        queue = await self._queue(subscription)
        if queue is not None:
            await queue.settled(settlements)
        return responses

    def forget(self, subscription: str) -> None:
        queue = self._queues.pop(subscription, None)
        if queue is not None:
            queue.close()
        super().forget(subscription)

    async def stop(self) -> None:
        for subscription in list(self._queues):
            self.forget(subscription)
        await super().stop()

    async def _queue(self, subscription: str) -> OrderedQueue | None:
        if subscription not in self._queues:
            status = await self.admin.describe_subscription(subscription)
            queue = None
            if status.config.message_ordering:
                queue = OrderedQueue(self.broker, status.config, self._clock)  # type: ignore[arg-type]
                if status.unsettled is not None and status.unsettled.leased:
                    queue.begin_after(status.unsettled.leased)
            self._queues.setdefault(subscription, queue)
        return self._queues[subscription]

    def _on_expired(self, subscription: str, ack_ids: Sequence[str]) -> None:
        queue = self._queues.get(subscription)
        if queue is not None:
            queue.failed(ack_ids)


class OrderedQueue:
    """One ordered subscription: what may be handed over, and what waits for its turn."""

    def __init__(self, broker: KeptDeadlines, config: SubscriptionConfig, clock: Clock) -> None:
        self._begins_at = clock.monotonic()
        self._lent_before = 0
        self._broker = broker
        self._config = config
        self._clock = clock
        self._order = KeyOrder(broker_orders=False, returns_within=_returns_within(config))
        self._patience = Alarm(clock, self._stop_awaiting)
        self._ready: deque[Message] = deque()
        self._held: dict[str, Message] = {}
        self._news = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    def begin_after(self, lent: int) -> None:
        """So many were lent before we began, by an emulator that died. The broker brings them back
        when their deadlines have passed, in whatever order that is: nobody is given anything
        before all of them are here."""
        self._begins_at = self._clock.monotonic() + self._config.ack_deadline
        self._lent_before = lent

    async def pull(self, max_messages: int, max_bytes: int, wait: float) -> list[Delivery]:
        until = self._clock.monotonic() + max(wait, _AT_LEAST)
        while True:
            taken = await self._take(max_messages, max_bytes)
            remaining = until - self._clock.monotonic()
            if taken or remaining <= 0:
                return taken
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            self._news.clear()
            self._fetch(max_messages, max_bytes)
            await self._hear(remaining)

    async def settled(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            message = self._held.get(settlement.ack_id)
            if message is None or (settlement.verb is Verb.EXTEND and settlement.seconds):
                continue
            del self._held[settlement.ack_id]
            self._leave(message, failed=self._comes_back(settlement, message))

    def failed(self, ack_ids: Sequence[str]) -> None:
        """Their deadlines have passed."""
        for ack_id in ack_ids:
            message = self._held.pop(ack_id, None)
            if message is not None:
                self._leave(message, failed=not self._is_spent(message))

    def _fetch(self, max_messages: int, max_bytes: int) -> None:
        """One pull at a time, so that what comes back is seen before what is new."""
        if self._fetching is None and self._order.waiting < _MOST_PARKED:
            # Ends by itself within a moment; `close` ends it sooner.
            self._fetching = asyncio.get_running_loop().create_task(
                self._fetched(max_messages, max_bytes)
            )
            self._fetching.add_done_callback(self._on_fetched)

    async def _fetched(self, max_messages: int, max_bytes: int) -> None:
        if self._lent_before:
            await self._arrived(await self._returned())
        name = self._config.name
        pulled = await self._broker.pull(
            name, max_messages=max_messages, max_bytes=max_bytes, wait=_WAIT
        )
        await self._arrived(pulled)

    async def _returned(self) -> list[Delivery]:
        """What was lent before, once its deadlines have passed, and perhaps some that is new."""
        await asyncio.sleep(max(0.0, self._begins_at - self._clock.monotonic()))
        back, missing, self._lent_before = list[Delivery](), self._lent_before, 0
        while missing > 0:
            more = await self._broker.pull(
                self._config.name, max_messages=missing, max_bytes=_FIRST_BYTES, wait=_WAIT
            )
            if not more:
                break  # Somebody else has it, or it was acked meanwhile.
            back += more
            missing -= sum(delivery.delivery_attempt > 1 for delivery in more)
        return back

    def _on_fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        if not task.cancelled():
            self._failure = task.exception()
        self._news.set()

    def close(self) -> None:
        self._patience.cancel()
        if self._fetching is not None:
            self._fetching.cancel()

    async def _arrived(self, deliveries: Sequence[Delivery]) -> None:
        nobody = cast("Any", None)
        # What comes back together may come in another order than it went.
        ordered = sorted(deliveries, key=lambda delivery: delivery.record.sequence)
        messages = Message.of(ordered, nobody, 0.0)
        self._held.update((message.ack_id, message) for message in messages)
        going, parked = self._order.enter(messages)
        self._ready.extend(going)
        if parked:
            keep = [Settlement(message.ack_id, Verb.EXTEND, _PARKED) for message in parked]
            await self._broker.settle(self._config.name, keep)
        self._news.set()

    async def _take(self, max_messages: int, max_bytes: int) -> list[Delivery]:
        taken: list[Delivery] = []
        left = max_bytes
        while self._ready and len(taken) < max_messages:
            message = self._ready[0]
            if len(message) > left and taken:
                break
            self._ready.popleft()
            if message.ack_id in self._held:
                left -= len(message)
                taken.append(message._delivery)
        if taken:
            # Its time begins now, however long it has waited.
            begin = [Settlement(d.ack_id, Verb.EXTEND, d.ack_deadline) for d in taken]
            await self._broker.settle(self._config.name, begin)
        return taken

    def _leave(self, message: Message, *, failed: bool) -> None:
        left = self._order.leave(message, self._clock.monotonic() if failed else None)
        if left.following is not None:
            self._ready.append(left.following)
            self._news.set()
        self._patience.set(self._order.next())

    def _stop_awaiting(self) -> float | None:
        following = self._order.stop_awaiting(self._clock.monotonic())
        if following:
            self._ready.extend(following)
            self._news.set()
        return self._order.next()

    def _comes_back(self, settlement: Settlement, message: Message) -> bool:
        if settlement.verb in (Verb.ACK, Verb.REJECT):
            return False
        return settlement.verb is Verb.RELEASE or not self._is_spent(message)

    def _is_spent(self, message: Message) -> bool:
        """Its last attempt: it goes to the dead letters, and its key goes on."""
        policy = self._config.dead_letter_policy
        return policy is not None and message.delivery_attempt >= policy.max_delivery_attempts

    async def _hear(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return


def _returns_within(config: SubscriptionConfig) -> float:
    policy = config.retry_policy
    return config.ack_deadline + (policy.maximum_backoff if policy else 0.0) + _SLACK
