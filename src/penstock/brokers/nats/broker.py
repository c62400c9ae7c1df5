"""The data path of the JetStream adapter, and what its parts share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from penstock.broker import Capabilities
from penstock.brokers.nats.admin import NatsAdmin
from penstock.brokers.nats.aio.connection import Connection, NatsOptions
from penstock.brokers.nats.aio.publishing import Publishing
from penstock.brokers.nats.aio.pulling import Pulling, Raw
from penstock.brokers.nats.aio.pushing import PushInbox
from penstock.brokers.nats.catalogue import Catalogue, Consumer
from penstock.brokers.nats.dead_letters import Rescue
from penstock.brokers.nats.log import NatsLog
from penstock.brokers.nats.protocol.headers import parse_ack_subject, record_of
from penstock.clock import NS, Clock, PreciseTime
from penstock.config import SubscriptionConfig, split_name
from penstock.errors import PenstockError, SubscriptionNotFoundError
from penstock.message import (
    AckResponse,
    Delivery,
    Draft,
    PublishFault,
    Receipt,
    Record,
    Settlement,
    Verb,
)
from penstock.rules.deadlines import Deadlines
from penstock.rules.filters import parse_filter

_DEAD = "CloudPubSubDeadLetterSource"


class NatsBroker:
    """JetStream behind the port."""

    capabilities = Capabilities(
        durable=True,
        filters=True,
        dead_letters=True,
        retry_policy=True,
        delayed_nack=True,
        exactly_once=True,
        delivery_attempts=True,
        dedupe=True,
        push=True,
        subjects=True,
        work_queues=True,
        expectations=True,
        ttl=True,
        updates=True,
        expiration=True,
        seek=True,
        replay=True,
        backlog=True,
    )

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._catalogue = Catalogue(connection)
        self._publishing = Publishing(connection, self._catalogue)
        self._pulling = Pulling(connection)
        self.log = NatsLog(self._catalogue, self._pulling)
        self._rescue = Rescue(connection, self._pulling, self.log, self._bury)
        self.admin = NatsAdmin(connection, self._catalogue, self.log, self._rescue, clock)
        self._loans: dict[str, _Loans] = {}
        self._pushed: dict[str, PushInbox] = {}
        self._opening = asyncio.Lock()
        self._catalogue.on_forget = lambda subscription: self._loans.pop(subscription, None)
        connection.on_denied = self._publishing.denied

    @classmethod
    async def connect(cls, url: str, clock: Clock) -> Self:
        connection = Connection(NatsOptions.of(url))
        await connection.open()
        broker = cls(connection, clock)
        await broker._publishing.open()
        return broker

    async def publish(
        self, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        return await self._publishing.publish(topic, drafts)

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        consumer = await self._catalogue.consumer(subscription)
        if consumer.config.dead_letter_policy is not None:
            self._rescue.watch(consumer)
        until = self._clock.monotonic() + wait
        while True:
            remaining = max(0.0, until - self._clock.monotonic())
            try:
                source = await self._source(consumer)
                raws = await source(max_messages, max_bytes, remaining)
            except SubscriptionNotFoundError:
                self._catalogue.forget(subscription)
                raise
            if not raws and consumer.config.push is not None:
                # Nobody tells us when a push consumer is gone: it is just quiet.
                await self._catalogue.consumer_info(subscription)
            deliveries = [_delivery(consumer, raw) for raw in raws]
            if consumer.config.filter:
                deliveries = await self._filtered(consumer, deliveries)
            if deliveries or self._clock.monotonic() >= until:
                self._remember(consumer.config, deliveries)
                return deliveries

    async def _source(
        self, consumer: Consumer
    ) -> Callable[[int, int, float], Awaitable[list[Raw]]]:
        """Where deliveries come from: asked for, or pushed."""
        if consumer.config.push is None:
            return partial(self._pulling.pull, consumer)
        name = consumer.config.name
        async with self._opening:
            inbox = self._pushed.get(name)
            if inbox is None:
                inbox = PushInbox(self._connection.wire, self._pulling)
                await inbox.open(consumer)
                self._pushed[name] = inbox
        return inbox.pull

    async def _filtered(self, consumer: Consumer, deliveries: list[Delivery]) -> list[Delivery]:
        """JetStream knows no attributes: what does not match is acked here."""
        matches = parse_filter(consumer.config.filter).matches
        others = [d for d in deliveries if not matches(d.record.attributes)]
        await self._pulling.write_acks([(d.ack_id.encode(), b"+ACK") for d in others])
        return [d for d in deliveries if matches(d.record.attributes)]

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        config = (await self._catalogue.consumer(subscription)).config
        loans = self._loans.get(subscription) if _needs_loans(config) else None
        responses = [AckResponse.SUCCESS] * len(settlements)
        acks: list[tuple[bytes, bytes]] = []
        now = self._clock.monotonic()
        answered: list[Settlement] = []
        for at, settlement in enumerate(settlements):
            ack_id = settlement.ack_id
            exactly_once = config.enable_exactly_once_delivery
            if exactly_once and (loans is None or not loans.is_open(ack_id, now)):
                responses[at] = AckResponse.INVALID
                continue
            acks.append((ack_id.encode(), await self._answer(config, settlement, loans)))
            answered.append(settlement)
        if acks and config.enable_exactly_once_delivery:
            await self._pulling.write_acks_and_wait(acks)
        elif acks:
            await self._pulling.write_acks(acks)
        # Only now: a call that fails is made again, and must find them as they were.
        if loans is not None:
            for settlement in answered:
                loans.settled(settlement, now)
        return responses

    async def _answer(
        self, config: SubscriptionConfig, settlement: Settlement, loans: _Loans | None
    ) -> bytes:
        """What to tell the server, after moving a spent message to the dead letters."""
        match settlement.verb:
            case Verb.ACK:
                return b"+ACK"
            case Verb.EXTEND if settlement.seconds:
                return b"+WPI"
            case Verb.RELEASE:
                return b"-NAK"
            case Verb.REJECT:
                if loans is not None and await self._dead_letter(config, settlement, loans):
                    return b"+ACK"
                return b"+TERM" if config.dead_letter_policy is None else b"-NAK"
        policy = config.dead_letter_policy
        delivered = parse_ack_subject(settlement.ack_id.encode()).delivered
        spent = policy is not None and delivered >= policy.max_delivery_attempts
        if spent and loans is not None and await self._dead_letter(config, settlement, loans):
            return b"+ACK"
        delay = settlement.seconds
        if delay is None and config.retry_policy is not None:
            delay = config.retry_policy.delay(delivered)
        return b'-NAK {"delay": %d}' % int(delay * NS) if delay else b"-NAK"

    async def _dead_letter(
        self, config: SubscriptionConfig, settlement: Settlement, loans: _Loans
    ) -> bool:
        """Publish a spent message to the dead letters; False when that failed, so that it stays."""
        if settlement.ack_id in loans.buried:
            return True
        record = loans.record(settlement.ack_id)
        if record is None:
            return False
        lent = parse_ack_subject(settlement.ack_id.encode())
        moved = await self._bury(config, record, lent.delivered)
        if moved:
            loans.buried.add(settlement.ack_id)
        return moved

    async def _bury(self, config: SubscriptionConfig, record: Record, delivered: int) -> bool:
        policy = config.dead_letter_policy
        if policy is None:
            return False
        project, name = split_name(config.name, "penstock")
        source = {
            f"{_DEAD}DeliveryCount": str(delivered),
            f"{_DEAD}Subscription": name,
            f"{_DEAD}SubscriptionProject": project,
            f"{_DEAD}TopicPublishTime": PreciseTime.from_ns(record.publish_time_ns).isoformat(),
        }
        # The same id from whoever moves it: it arrives once.
        message_id = f"dead/{config.topic}/{config.name}/{record.sequence}"
        draft = Draft(record.data, {**record.attributes, **source}, record.ordering_key, message_id)
        try:
            [answer] = await self._publishing.publish(policy.topic, [draft])
        except PenstockError:
            return False
        return isinstance(answer, Receipt)

    async def ping(self) -> float:
        return await self._connection.ping()

    async def aclose(self) -> None:
        await self._rescue.close()
        with suppress(PenstockError):
            for inbox in self._pushed.values():
                await inbox.close()
        await self._connection.close()

    def _remember(self, config: SubscriptionConfig, deliveries: list[Delivery]) -> None:
        """Only where answers need more than the ack id says."""
        if not deliveries:
            return
        if _needs_loans(config):
            loans = self._loans.get(config.name)
            if loans is None:
                loans = self._loans[config.name] = _Loans(config)
            loans.begin(deliveries, self._clock.monotonic())


class _Loans:
    """Open deliveries of a subscription: until when they are ours, and what is in them."""

    def __init__(self, config: SubscriptionConfig) -> None:
        self._ack_deadline = config.ack_deadline
        self._ends: Deadlines[str] = Deadlines()
        self._records: dict[str, Record] = {}
        self.buried: set[str] = set()

    def begin(self, deliveries: list[Delivery], now: float) -> None:
        self._forget_expired(now)
        self._ends.add(now + self._ack_deadline, [d.ack_id for d in deliveries])
        self._records.update((d.ack_id, d.record) for d in deliveries)

    def is_open(self, ack_id: str, now: float) -> bool:
        ends = self._ends.due(ack_id)
        return ends is not None and ends > now

    def record(self, ack_id: str) -> Record | None:
        return self._records.get(ack_id)

    def settled(self, settlement: Settlement, now: float) -> None:
        if settlement.verb is Verb.EXTEND and settlement.seconds:
            self._ends.add(now + self._ack_deadline, [settlement.ack_id])
        else:
            self._ends.discard(settlement.ack_id)
            self._records.pop(settlement.ack_id, None)
            self.buried.discard(settlement.ack_id)

    def _forget_expired(self, now: float) -> None:
        for ack_id in self._ends.pop_due(now):
            self._records.pop(ack_id, None)
            self.buried.discard(ack_id)


def _needs_loans(config: SubscriptionConfig) -> bool:
    return config.enable_exactly_once_delivery or config.dead_letter_policy is not None


def _delivery(consumer: Consumer, raw: Raw) -> Delivery:
    subject, reply, block, payload = raw
    lent = parse_ack_subject(reply)
    topic = consumer.config.topic
    record = record_of(topic, subject, block, payload, lent.sequence, lent.published_ns)
    return Delivery(record, reply.decode(), lent.delivered, consumer.config.ack_deadline)
