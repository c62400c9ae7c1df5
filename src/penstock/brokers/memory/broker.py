"""The data path of the memory broker, and what its parts share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from penstock.broker import Capabilities
from penstock.brokers.memory.admin import MemoryAdmin
from penstock.brokers.memory.log import MemoryLog
from penstock.brokers.memory.registry import Registry
from penstock.brokers.memory.subscription import SubscriptionState
from penstock.clock import Clock, PreciseTime
from penstock.config import SubscriptionConfig, split_name
from penstock.message import AckResponse, Delivery, Draft, PublishFault, Receipt, Record, Settlement

# Publishing never has to wait here, so a loop that publishes would keep everybody else from
# running. Large enough to cost nothing per message, small enough (well under a millisecond)
# not to be noticed.
_PUBLISHES_PER_TURN = 256


class MemoryBroker:
    """Topics and subscriptions inside this process; nothing survives it.

    Deadlines follow `clock`. One event loop at a time, no threads.
    """

    name = "memory"
    capabilities = Capabilities(
        ordering=True,
        filters=True,
        dead_letters=True,
        retry_policy=True,
        delayed_nack=True,
        sets_deadlines=True,
        exactly_once=True,
        delivery_attempts=True,
        dedupe=True,
        expectations=True,
        outlives_topic=True,
        subjects=True,
        work_queues=True,
        updates=True,
        filter_updates=True,
        detaching=True,
        expiration=True,
        seek=True,
        snapshots=True,
        replay=True,
        backlog=True,
    )

    def __init__(self, clock: Clock | None = None, *, project: str = "penstock") -> None:
        self._clock = clock or Clock()
        self.project = project
        self._registry = Registry()
        self._ack_ids = itertools.count(1)
        self._turn = 0
        self.admin = MemoryAdmin(self._registry, self._clock, self._new_subscription)
        self.log = MemoryLog(self._registry, self._clock)

    async def publish(
        self, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        if not drafts:
            return self._nothing()
        receipts = self._registry.topic(topic).append(drafts, self._clock.time_ns())
        self._turn += len(drafts)
        if self._turn >= _PUBLISHES_PER_TURN:
            self._turn = 0
            await asyncio.sleep(0)
        return receipts

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        if max_messages < 1:
            return self._nothing()
        return await self._registry.subscription(subscription).pull(max_messages, max_bytes, wait)

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        if not settlements:
            return self._nothing()
        return self._registry.subscription(subscription).settle(settlements)

    def _nothing(self) -> list[Any]:
        self._registry.check_open()
        return []

    async def ping(self) -> float:
        self._registry.check_open()
        return 0.0

    async def aclose(self) -> None:
        self._registry.close()

    def _new_subscription(self, config: SubscriptionConfig) -> SubscriptionState:
        return SubscriptionState(config, self._clock, self._ack_ids, self._dead_letter)

    def _dead_letter(self, config: SubscriptionConfig, record: Record, attempt: int) -> bool:
        """Forward a spent message; False when its dead-letter topic is gone, so that the message
        stays where it is rather than being lost."""
        policy = config.dead_letter_policy
        topic = policy and self._registry.topics.get(policy.topic)
        if not topic:
            return False
        published = PreciseTime.from_ns(record.publish_time_ns)
        project, name = split_name(config.name, self.project)
        source = {
            "CloudPubSubDeadLetterSourceDeliveryCount": str(attempt),
            "CloudPubSubDeadLetterSourceSubscription": name,
            "CloudPubSubDeadLetterSourceSubscriptionProject": project,
            "CloudPubSubDeadLetterSourceTopicPublishTime": published.isoformat(),
        }
        draft = Draft(record.data, {**record.attributes, **source}, record.ordering_key)
        topic.append([draft], self._clock.time_ns())
        return True
