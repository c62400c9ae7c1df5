"""The data path of the JetStream adapter, and what its parts share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec

from penstock.broker import Capabilities
from penstock.brokers.nats.admin import NatsAdmin
from penstock.brokers.nats.aio.connection import Connection
from penstock.brokers.nats.aio.publishing import Publishing
from penstock.brokers.nats.aio.pulling import Pulling
from penstock.brokers.nats.aio.pushing import PushInbox
from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.dead_letters import DeadLetterMover
from penstock.brokers.nats.loans import Loans, foreign_ids, needs_loans
from penstock.brokers.nats.log import NatsLog
from penstock.brokers.nats.ordered import OrderedQueue
from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.protocol.configuration import Consumer
from penstock.brokers.nats.protocol.records import (
    Raw,
    parse_ack_subject,
    parse_attempt,
    record_of,
)
from penstock.brokers.nats.releases import Releases
from penstock.clock import NS, Clock, PreciseTime
from penstock.config import SubscriptionConfig, split_name
from penstock.errors import (
    InvalidArgumentError,
    PenstockError,
    PermissionDeniedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
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
from penstock.rules.filters import parse_filter

_DEAD = "CloudPubSubDeadLetterSource"
# Seconds until a message is looked at again that could not be moved to the dead letters.
_TRY_AGAIN_AFTER = 10.0


class NatsBroker:
    """JetStream behind the port."""

    name = "NATS JetStream"
    capabilities = Capabilities(
        durable=True,
        filters=True,
        dead_letters=True,
        retry_policy=True,
        delayed_nack=True,
        ordering=True,
        exactly_once=True,
        delivery_attempts=True,
        dedupe=True,
        push=True,
        subjects=True,
        work_queues=True,
        expectations=True,
        ttl=True,
        replicas=True,
        updates=True,
        expiration=True,
        seek=True,
        replay=True,
        backlog=True,
    )

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.project = "penstock"
        self._connection = connection
        self._clock = clock
        self._catalogue = Catalogue(connection)
        self._publishing = Publishing(connection, self._catalogue)
        self._pulling = Pulling(connection)
        self.log = NatsLog(connection, self._catalogue, self._pulling)
        self._mover = DeadLetterMover(
            connection, self._catalogue, self._pulling, self.log, self._to_dead_letters
        )
        self._releases = Releases(connection, self._catalogue)
        self._pulling.giving_back = self._releases.giving_back
        self.admin = NatsAdmin(
            connection, self._catalogue, self.log, self._mover, self._releases, clock
        )
        self._loans: dict[str, Loans] = {}
        self._pushed: dict[str, PushInbox] = {}
        self._ordered: dict[str, OrderedQueue] = {}
        self._catalogue.on_forget = self._forget
        connection.on_denied = self._publishing.denied

    @classmethod
    async def connect(cls, url: str, clock: Clock) -> Self:
        connection = Connection(NatsOptions.of(url))
        await connection.open()
        broker = cls(connection, clock)
        broker._publishing.open()
        return broker

    async def publish(
        self, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        answers = await self._publishing.publish(topic, drafts)
        if PublishFault in map(type, answers):
            answers = await self._confirm_missing(topic, answers)
        return answers

    async def _confirm_missing(
        self, topic: str, answers: Sequence[Receipt | PublishFault]
    ) -> Sequence[Receipt | PublishFault]:
        """Nobody took some drafts: the topic is gone, or it has no leader for a moment."""
        missing = [_says_missing(answer) for answer in answers]
        if not any(missing):
            return answers
        error: PenstockError
        try:
            await self._catalogue.stream_info(topic)
        except TopicNotFoundError:
            self._catalogue.forget_routes(topic)
            if all(missing):
                raise
            return answers
        except PermissionDeniedError:
            error = UnavailableError(
                f"Nobody takes messages for topic {topic!r}: it has no leader now, or it is not "
                "there; which of the two, this user may not ask"
            )
        except PenstockError as unknown:
            error = unknown
        else:
            error = UnavailableError(
                f"Topic {topic!r} is there, but nobody stores messages for it now"
            )
        fault = PublishFault(error)
        return [fault if gone else a for a, gone in zip(answers, missing, strict=True)]

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        consumer = await self._catalogue.consumer(subscription)
        if max_messages < 1:
            return []
        if consumer.config.dead_letter_policy is not None:
            self._mover.watch(consumer)
            self._releases.follow(consumer)
        until = self._clock.monotonic() + wait
        while True:
            remaining = max(0.0, until - self._clock.monotonic())
            consumer = await self._catalogue.consumer(subscription)
            try:
                taken = await self._take(consumer, max_messages, max_bytes, remaining)
            except SubscriptionNotFoundError as missing:
                raise await self._confirmed(missing, subscription) from missing
            if not taken and consumer.config.push is not None:
                # Nobody tells us when a push consumer is gone: it is just quiet.
                await self._catalogue.consumer_info(subscription)
            deliveries = await self._sifted(consumer, taken)
            if deliveries or self._clock.monotonic() >= until:
                self._remember(consumer.config, deliveries)
                return deliveries

    async def _take(
        self, consumer: Consumer, max_messages: int, max_bytes: int, wait: float
    ) -> list[Delivery]:
        """What comes: asked for, pushed, or lent in order."""
        config = consumer.config
        self._connection.wire.check_open()
        if config.push is not None:
            raws = await self._push_inbox(consumer).pull(max_messages, max_bytes, wait)
        elif config.message_ordering:
            return await self._ordered_queue(consumer).pull(max_messages, max_bytes, wait)
        else:
            raws = await self._pulling.pull(consumer, max_messages, max_bytes, wait)
        return [_delivery(consumer, raw) for raw in raws]

    async def _confirmed(
        self, missing: SubscriptionNotFoundError, subscription: str
    ) -> PenstockError:
        """What to say when a pull found nobody: the subscription is gone, or has no leader now."""
        try:
            await self._catalogue.consumer_info(subscription)
        except SubscriptionNotFoundError:
            return missing
        except PenstockError as unknown:
            return unknown
        return UnavailableError(
            f"Subscription {subscription!r} is there, but nobody hands over its messages now"
        )

    def _push_inbox(self, consumer: Consumer) -> PushInbox:
        name = consumer.config.name
        inbox = self._pushed.get(name)
        if inbox is None:
            inbox = PushInbox(self._connection.wire, self._pulling)
            inbox.open(consumer)
            self._pushed[name] = inbox
        return inbox

    def _ordered_queue(self, consumer: Consumer) -> OrderedQueue:
        name = consumer.config.name
        queue = self._ordered.get(name)
        if queue is None:
            queue = self._ordered[name] = OrderedQueue(
                consumer,
                self._connection.wire,
                self._pulling,
                self._catalogue,
                self.log,
                _delivery,
            )
        return queue

    def _forget(self, subscription: str) -> None:
        """It is gone, or another than it was."""
        self._loans.pop(subscription, None)
        queue = self._ordered.pop(subscription, None)
        if queue is not None:
            queue.close()

    async def _sifted(self, consumer: Consumer, taken: list[Delivery]) -> list[Delivery]:
        """What is to be handed over of what came; nothing of it is lost, however this ends."""
        deliveries = taken
        queue = self._ordered.get(consumer.config.name)
        try:
            if consumer.config.filter:
                deliveries = await self._filtered(consumer, deliveries)
            if consumer.config.dead_letter_policy is not None:
                deliveries = await self._without_spent(consumer, deliveries)
        except BaseException:
            self._pulling.give_back([delivery.ack_id.encode() for delivery in taken])
            if queue is not None:
                for delivery in taken:
                    queue.settled(delivery.record.sequence, b"-NAK")
            raise
        if queue is not None and len(deliveries) < len(taken):
            kept = {delivery.record.sequence for delivery in deliveries}
            for delivery in taken:
                if delivery.record.sequence not in kept:
                    queue.settled(delivery.record.sequence, b"+ACK")
        return deliveries

    async def _filtered(self, consumer: Consumer, deliveries: list[Delivery]) -> list[Delivery]:
        """JetStream knows no attributes: what does not match is acked here."""
        matches = parse_filter(consumer.config.filter).matches
        others = [d for d in deliveries if not matches(d.record.attributes)]
        await self._pulling.write_acks([(d.ack_id.encode(), b"+ACK") for d in others])
        return [d for d in deliveries if matches(d.record.attributes)]

    async def _without_spent(
        self, consumer: Consumer, deliveries: list[Delivery]
    ) -> list[Delivery]:
        """Whoever had the last attempt at some of these died or was too slow: they are moved to the
        dead letters, or wait until that can be done."""
        policy = consumer.config.dead_letter_policy
        if policy is None or all(
            d.delivery_attempt <= policy.max_delivery_attempts for d in deliveries
        ):
            return deliveries
        kept: list[Delivery] = []
        for delivery in deliveries:
            attempts = delivery.delivery_attempt
            if attempts > policy.max_delivery_attempts:
                attempts -= await self._releases.count(consumer, delivery.record.sequence)
            if attempts <= policy.max_delivery_attempts:
                kept.append(msgspec.structs.replace(delivery, delivery_attempt=max(attempts, 1)))
                continue
            moved = await self._to_dead_letters(consumer.config, delivery.record, attempts - 1)
            answer = b"+ACK" if moved else b'-NAK {"delay": %d}' % int(_TRY_AGAIN_AFTER * NS)
            await self._pulling.write_acks([(delivery.ack_id.encode(), answer)])
        return kept

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        consumer = await self._catalogue.consumer(subscription)
        config = consumer.config
        foreign = foreign_ids(consumer, settlements)
        loans = self._loans.get(subscription) if needs_loans(config) else None
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
            if at in foreign:
                continue
            if settlement.verb is Verb.RELEASE:
                acks += self._releases.giving_back([ack_id.encode()])
            else:
                acks.append((ack_id.encode(), await self._answer(consumer, settlement, loans)))
            answered.append(settlement)
        queue = self._ordered.get(subscription)
        if acks and (config.enable_exactly_once_delivery or queue is not None):
            # In order, the next of a key goes only when the server is done with the one before.
            if queue is not None:
                for sequence, answer in _told(acks):
                    queue.settling(sequence, answer)
            await self._pulling.write_acks_and_wait(acks)
        elif acks:
            await self._pulling.write_acks(acks)
        # Only now: a call that fails is made again, and must find them as they were.
        if loans is not None:
            for settlement in answered:
                loans.settled(settlement, now)
        if queue is not None:
            for sequence, answer in _told(acks):
                queue.settled(sequence, answer)
        return responses

    async def _answer(
        self, consumer: Consumer, settlement: Settlement, loans: Loans | None
    ) -> bytes:
        """What to tell the server, after moving a spent message to the dead letters."""
        config = consumer.config
        match settlement.verb:
            case Verb.ACK:
                return b"+ACK"
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
        return b'-NAK {"delay": %d}' % int(delay * NS) if delay else b"-NAK"

    async def _dead_letter(
        self, config: SubscriptionConfig, settlement: Settlement, loans: Loans, attempts: int
    ) -> bool:
        """Publish a spent message to the dead letters; False when that failed, so that it stays."""
        if settlement.ack_id in loans.moved:
            return True
        record = loans.record(settlement.ack_id)
        if record is None:
            return False
        moved = await self._to_dead_letters(config, record, attempts)
        if moved:
            loans.moved.add(settlement.ack_id)
        return moved

    async def _to_dead_letters(
        self, config: SubscriptionConfig, record: Record, delivered: int
    ) -> bool:
        policy = config.dead_letter_policy
        if policy is None:
            return False
        project, name = split_name(config.name, self.project)
        source = {
            f"{_DEAD}DeliveryCount": str(delivered),
            f"{_DEAD}Subscription": name,
            f"{_DEAD}SubscriptionProject": project,
            f"{_DEAD}TopicPublishTime": PreciseTime.from_ns(record.publish_time_ns).isoformat(),
        }
        # The same id from whoever moves it: it arrives once.
        message_id = f"dead/{config.topic}/{config.name}/{record.sequence}"
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

    async def ping(self) -> float:
        return await self._connection.ping()

    async def aclose(self) -> None:
        await self._mover.close()
        for inbox in self._pushed.values():
            inbox.close()
        for queue in self._ordered.values():
            queue.close()
        await self._connection.close()

    def _remember(self, config: SubscriptionConfig, deliveries: list[Delivery]) -> None:
        """Only where answers need more than the ack id says."""
        if not deliveries:
            return
        if needs_loans(config):
            loans = self._loans.get(config.name)
            if loans is None:
                loans = self._loans[config.name] = Loans(config)
            loans.begin(deliveries, self._clock.monotonic())


def _says_missing(answer: Receipt | PublishFault) -> bool:
    return isinstance(answer, PublishFault) and isinstance(answer.error, TopicNotFoundError)


def _told(acks: list[tuple[bytes, bytes]]) -> list[tuple[int, bytes]]:
    """Which messages the server is told of, by sequence, and what."""
    return [
        (parse_ack_subject(to).sequence, answer)
        for to, answer in acks
        if to.startswith(b"$JS.ACK.")
    ]


def _delivery(consumer: Consumer, raw: Raw) -> Delivery:
    config = consumer.config
    subject, reply, block, payload = raw
    delivered, sequence, published_ns = parse_attempt(reply)
    record = record_of(config.topic, subject, block, payload, sequence, published_ns)
    return Delivery(record, reply.decode(), delivered, config.ack_deadline)
