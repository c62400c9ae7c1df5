"""What becomes of messages that failed: they come back, at once or later, or are given up and moved
to the dead letters."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.brokers.nats.aio.publishing import Publishing
from penstock.brokers.nats.aio.pulling import Pulling
from penstock.brokers.nats.loans import Loans
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.brokers.nats.protocol.records import parse_ack_subject
from penstock.brokers.nats.protocol.requests import nak
from penstock.brokers.nats.releases import Releases
from penstock.clock import PreciseTime
from penstock.config import SubscriptionConfig, split_name
from penstock.errors import InvalidArgumentError, PenstockError
from penstock.message import Delivery, Draft, PublishFault, Receipt, Record, Settlement, Verb
from penstock.rules.derived_ids import derived_id

_DEAD = "CloudPubSubDeadLetterSource"
# Seconds until a message is looked at again that could not be moved to the dead letters.
_TRY_AGAIN_AFTER = 10.0


class Failing:
    """Decides about messages that failed, by their subscription's policies."""

    def __init__(
        self, publishing: Publishing, pulling: Pulling, releases: Releases, project: str
    ) -> None:
        self._publishing = publishing
        self._pulling = pulling
        self._releases = releases
        self._project = project

    async def answer(
        self, consumer: Consumer, settlement: Settlement, loans: Loans | None
    ) -> bytes:
        """What to tell the server of one that is not done, after moving a spent message to the
        dead letters."""
        config = consumer.config
        match settlement.verb:
            case Verb.EXTEND if settlement.seconds:
                return b"+WPI"
            case Verb.REJECT:
                attempts = parse_ack_subject(settlement.ack_id.encode()).delivered
                if loans is not None and await self._dead_letter(
                    config, settlement, loans, attempts
                ):
                    return b"+ACK"
                return b"+TERM" if config.dead_letter_policy is None else b"-NAK"
        policy = config.dead_letter_policy
        lent = parse_ack_subject(settlement.ack_id.encode())
        attempts = lent.delivered
        if policy is not None and attempts >= policy.max_delivery_attempts:
            attempts -= await self._releases.count(consumer, lent.sequence)
            spent = attempts >= policy.max_delivery_attempts
            if (
                spent
                and loans is not None
                and await self._dead_letter(config, settlement, loans, attempts)
            ):
                return b"+ACK"
        delay = settlement.seconds
        if delay is None and config.retry_policy is not None:
            delay = config.retry_policy.delay(max(attempts, 1))
        return nak(delay or 0.0)

    async def without_spent(
        self, consumer: Consumer, deliveries: list[Delivery]
    ) -> tuple[list[Delivery], dict[int, bytes]]:
        """Whoever had the last attempt at some of these died or was too slow: they are moved to the
        dead letters, or wait until that can be done. The others, with the attempts that somebody
        saw; and what the server was told of those, by sequence."""
        policy = consumer.config.dead_letter_policy
        if policy is None or all(d.delivery_attempt == 1 for d in deliveries):
            return deliveries, {}
        kept: list[Delivery] = []
        told: dict[int, bytes] = {}
        most = policy.max_delivery_attempts
        for delivery, attempts in await self._with_attempts(consumer, deliveries, most):
            if attempts <= most:
                kept.append(msgspec.structs.replace(delivery, delivery_attempt=max(attempts, 1)))
                continue
            moved = await self.move(consumer.config, delivery.record, attempts - 1)
            answer = told[delivery.record.sequence] = b"+ACK" if moved else nak(_TRY_AGAIN_AFTER)
            await self._pulling.write_acks([(delivery.ack_id.encode(), answer)])
        return kept, told

    async def _with_attempts(
        self, consumer: Consumer, deliveries: list[Delivery], most: int
    ) -> list[tuple[Delivery, int]]:
        """How often each was seen, this time included. Where that cannot be found out, what the
        server counts will do for those that are not given up by it."""
        again = [d for d in deliveries if d.delivery_attempt > 1]
        counts = await asyncio.gather(
            *(self._releases.count(consumer, d.record.sequence) for d in again),
            return_exceptions=True,
        )
        unseen: dict[str, int] = {}
        for delivery, count in zip(again, counts, strict=True):
            if isinstance(count, int):
                unseen[delivery.ack_id] = count
            elif delivery.delivery_attempt > most or not isinstance(count, PenstockError):
                raise count
        return [(d, d.delivery_attempt - unseen.get(d.ack_id, 0)) for d in deliveries]

    async def _dead_letter(
        self, config: SubscriptionConfig, settlement: Settlement, loans: Loans, attempts: int
    ) -> bool:
        """Publish a spent message to the dead letters; False when that failed, so that it stays."""
        if settlement.ack_id in loans.moved:
            return True
        record = loans.record(settlement.ack_id)
        if record is None:
            return False
        moved = await self.move(config, record, attempts)
        if moved:
            loans.moved.add(settlement.ack_id)
        return moved

    async def move(self, config: SubscriptionConfig, record: Record, delivered: int) -> bool:
        """Publish a message to the dead letters of a subscription; False when it could not be."""
        policy = config.dead_letter_policy
        if policy is None:
            return False
        project, name = split_name(config.name, self._project)
        source = {
            f"{_DEAD}DeliveryCount": str(delivered),
            f"{_DEAD}Subscription": name,
            f"{_DEAD}SubscriptionProject": project,
            f"{_DEAD}TopicPublishTime": PreciseTime.from_ns(record.publish_time_ns).isoformat(),
        }
        # The same id from whoever moves it: it arrives once. With its time, because a topic that
        # was made again counts from 1 again.
        message_id = derived_id(
            "dead", config.topic, config.name, record.sequence, record.publish_time_ns
        )
        answer: Receipt | PublishFault | None = None
        # A message may fill what the server takes: better without saying where it is from than
        # not moved at all.
        for attributes in ({**record.attributes, **source}, record.attributes):
            draft = Draft(record.data, attributes, record.ordering_key, message_id)
            try:
                [answer] = await self._publishing.publish(policy.topic, [draft])
            except PenstockError:
                return False
            if isinstance(answer, Receipt) or not isinstance(answer.error, InvalidArgumentError):
                break
        return isinstance(answer, Receipt)
