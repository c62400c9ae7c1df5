"""Brokers that fail on purpose: the memory broker with faults in front."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from penstock import Capabilities, Draft, PubSub, Receipt, Subscription, SubscriptionStatus, Topic
from penstock.brokers.memory import MemoryBroker
from penstock.brokers.memory.admin import MemoryAdmin
from penstock.clock import Clock
from penstock.config import SubscriptionConfig
from penstock.errors import PenstockError
from penstock.message import AckResponse, Delivery, PublishFault, Settlement, Verb
from penstock.testing import VirtualClock


class FlakyBroker(MemoryBroker):
    """Each call takes the next failure from its list, if any is left. Records what it was asked."""

    def __init__(
        self,
        *,
        pull_failures: Sequence[Exception] = (),
        settle_failures: Sequence[Exception] = (),
        excess: int = 0,
    ) -> None:
        super().__init__(VirtualClock())
        self.pull_failures = list(pull_failures)
        self.settle_failures = list(settle_failures)
        self.excess = excess
        self.waiting_pulls = 0
        self.batches: list[int] = []
        self.settled: list[list[Settlement]] = []

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        if self.pull_failures:
            raise self.pull_failures.pop(0)
        self.waiting_pulls += 1
        try:
            deliveries = await super().pull(
                subscription,
                max_messages=max_messages + self.excess,
                max_bytes=max_bytes,
                wait=wait,
            )
        finally:
            self.waiting_pulls -= 1
        self.batches.append(len(deliveries))
        return deliveries

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        if self.settle_failures:
            raise self.settle_failures.pop(0)
        self.settled.append(list(settlements))
        return await super().settle(subscription, settlements)


class ModestBroker(MemoryBroker):
    """Does as little as a broker may, and claims none of it."""

    name = "modest"
    capabilities = Capabilities()

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.log = None
        self.admin = _ModestAdmin(self._registry, self._clock, self._new_subscription)

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        deliveries = await super().pull(
            subscription, max_messages=max_messages, max_bytes=max_bytes, wait=wait
        )
        return [structs.replace(delivery, delivery_attempt=0) for delivery in deliveries]

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        """Extensions renew the deadline as it is, and nacks know no delay."""
        if not settlements:
            return await super().settle(subscription, settlements)
        deadline = self._registry.subscription(subscription).config.ack_deadline
        return await super().settle(
            subscription,
            [
                structs.replace(s, seconds=deadline if s.verb is Verb.EXTEND else None)
                for s in settlements
            ],
        )


class _ModestAdmin(MemoryAdmin):
    async def create_subscription(self, config: SubscriptionConfig) -> None:
        await super().create_subscription(replace(config, message_ordering=False))

    async def delete_topic(self, topic: str) -> None:
        for subscription in (await self.describe_topic(topic)).subscriptions:
            await self.delete_subscription(subscription)
        await super().delete_topic(topic)

    async def describe_subscription(self, subscription: str) -> SubscriptionStatus:
        return replace(await super().describe_subscription(subscription), unsettled=None)


@asynccontextmanager
async def subscription_on(
    broker: MemoryBroker, **options: Any
) -> AsyncIterator[tuple[Topic, Subscription]]:
    """As `scenes.orders`, on a broker of the test's own."""
    pubsub = PubSub(broker=broker, clock=VirtualClock())
    async with pubsub:
        topic = await pubsub.topic("orders").create()
        yield topic, await topic.subscription("billing", **options).create()


class SlowBroker(MemoryBroker):
    """Publishing takes `delay` seconds, and each call or draft may fail as `faults` decides."""

    def __init__(self, *, delay: float = 0.0, faults: Faults | None = None) -> None:
        super().__init__(VirtualClock())
        self.delay = delay
        self.faults = faults or (lambda draft, attempt: None)
        self.calls: list[list[str]] = []
        self.attempts: Counter[str] = Counter()
        self.most_at_once = self.at_once = 0

    async def publish(
        self, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        ids = [str(draft.message_id) for draft in drafts]
        self.calls.append(ids)
        self.attempts.update(ids)
        self.at_once += len(drafts)
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            answers: list[Receipt | PublishFault] = []
            for draft in drafts:
                fault = self.faults(draft, self.attempts[str(draft.message_id)])
                if isinstance(fault, BaseException):
                    raise fault
                stored = fault is None or fault.stored
                answer = (await super().publish(topic, [draft]))[0] if stored else None
                answers.append(PublishFault(fault.error) if fault else answer)
            await asyncio.sleep(self.delay)
            return answers
        finally:
            self.at_once -= len(drafts)


@dataclass(frozen=True)
class Fault:
    """A draft is answered with `error`; `stored` says whether it was stored all the same."""

    error: PenstockError
    stored: bool = False


Faults = Callable[[Draft, int], Fault | Exception | None]
