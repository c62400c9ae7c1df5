"""A broker that fails on purpose: the memory broker with faults in front."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from penstock import PubSub, Subscription, Topic
from penstock.brokers.memory import MemoryBroker
from penstock.message import AckResponse, Delivery, Settlement
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


@asynccontextmanager
async def subscription_on(
    broker: MemoryBroker, **options: Any
) -> AsyncIterator[tuple[Topic, Subscription]]:
    """As `scenes.orders`, on a broker of the test's own."""
    pubsub = PubSub(broker=broker, clock=VirtualClock())
    async with pubsub:
        topic = await pubsub.topic("orders").create()
        yield topic, await topic.subscription("billing", **options).create()
