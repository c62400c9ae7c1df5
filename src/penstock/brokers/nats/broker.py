"""The data path of the JetStream adapter, and what its parts share."""

from __future__ import annotations

import asyncio
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
from penstock.brokers.nats.confirming import Confirming, told
from penstock.brokers.nats.dead_letters import DeadLetterMover
from penstock.brokers.nats.failing import Failing
from penstock.brokers.nats.handing_over import HandingOver, deliveries_of, delivery_of
from penstock.brokers.nats.loans import Loans, foreign_ids, needs_loans, written_before
from penstock.brokers.nats.log import NatsLog
from penstock.brokers.nats.ordered import OrderedQueue
from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.brokers.nats.protocol.headers import check_subject
from penstock.brokers.nats.protocol.records import (
    parse_ack_subject,
)
from penstock.brokers.nats.releases import Releases
from penstock.brokers.nats.snapshots import Snapshots
from penstock.clock import Clock
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
    Settlement,
    Verb,
)
from penstock.optional_verbs import OnSent, Take
from penstock.rules.filters import parse_filter
from penstock.rules.repeats import repeats

# While a request for what is delivered exactly once waits at the server, that says so this often:
# what comes twice as long after the last word was under way.
_SIGNS_PER_DEADLINE = 8
# Each comes a moment later than it is due, and the moments add up: after so many we ask anew.
_SIGNS_PER_REQUEST = 16
# With less left of its time than that, it is better left to whoever gets it next.
_NEARLY = 0.9

# On Python 3.11 finding a member in its enum takes longer than most of what is done with it.
_ACK, _RELEASE, _SUCCESS = Verb.ACK, Verb.RELEASE, AckResponse.SUCCESS


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
        counts_releases=True,
        dedupe=True,
        push=True,
        subjects=True,
        work_queues=True,
        expectations=True,
        ttl=True,
        replicas=True,
        updates=True,
        filter_updates=True,
        expiration=True,
        seek=True,
        snapshots=True,
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
        self._releases = Releases(connection, self._catalogue)
        self._pulling.giving_back = self._releases.giving_back
        self._pulling.on_sign = self._catalogue.look_again_at
        self._failing = Failing(self._publishing, self._pulling, self._releases, self.project)
        self._mover = DeadLetterMover(
            connection, self._catalogue, self._pulling, self.log, self._failing.move
        )
        kept = Snapshots(
            connection, self._catalogue, self.log, self._publishing, self._pulling, clock
        )
        self.admin = NatsAdmin(
            connection, self._catalogue, self.log, self._mover, self._releases, kept, clock
        )
        # By stream and name of the consumer.
        self._loans: dict[tuple[str, str], Loans] = {}
        self._pushed: dict[tuple[str, str], PushInbox] = {}
        self._ordered: dict[tuple[str, str], OrderedQueue] = {}
        self._confirming = Confirming()
        self._catalogue.on_forget = self._forget
        self._catalogue.on_change = self._reconfigure
        connection.on_denied = self._denied
        connection.wire.on_loss(self._lost)

    @classmethod
    async def connect(cls, url: str, clock: Clock) -> Self:
        connection = Connection(NatsOptions.of(url))
        await connection.open()
        broker = cls(connection, clock)
        broker._publishing.open()
        return broker

    async def publish(
        self, topic: str, drafts: Sequence[Draft], on_sent: OnSent | None = None
    ) -> Sequence[Receipt | PublishFault]:
        if not drafts:
            self._connection.wire.check_open()
            return []
        answers = await self._publishing.publish(topic, drafts, on_sent)
        if PublishFault in map(type, answers):
            answers = await self._confirm_missing(topic, drafts, answers)
        return answers

    async def publish_telling(
        self, on_sent: OnSent, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        return await self.publish(topic, drafts, on_sent)

    async def _confirm_missing(
        self, topic: str, drafts: Sequence[Draft], answers: Sequence[Receipt | PublishFault]
    ) -> Sequence[Receipt | PublishFault]:
        """Nobody took some drafts: the topic is gone, or has not their subjects any more, or it has
        no leader for a moment."""
        missing = [_says_missing(answer) for answer in answers]
        if not any(missing):
            return answers
        error: PenstockError
        subjects: Sequence[str] = (">",)
        try:
            await self._catalogue.stream_info(topic)
            subjects = (await self._catalogue.routes_again(topic)).subjects
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
        return [
            PublishFault(_refusal(topic, draft, subjects) or error) if gone else answer
            for draft, answer, gone in zip(drafts, answers, missing, strict=True)
        ]

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        return await self._pull(subscription, max_messages, max_bytes, wait, None)

    async def pull_to(
        self, take: Take, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        return await self._pull(subscription, max_messages, max_bytes, wait, take)

    async def _pull(
        self, subscription: str, max_messages: int, max_bytes: int, wait: float, take: Take | None
    ) -> Sequence[Delivery]:
        self._connection.wire.check_open()
        if max_messages < 1:
            return []
        until = self._clock.monotonic() + wait
        while True:
            remaining = max(0.0, until - self._clock.monotonic())
            consumer = await self._catalogue.consumer(subscription)
            self._catalogue.look_again(subscription)
            if consumer.config.dead_letter_policy is not None:
                self._mover.watch(consumer)
                self._releases.follow(consumer)
            hand_over = HandingOver(self._catalogue, consumer, take) if take is not None else None
            try:
                taken = await self._take(consumer, max_messages, max_bytes, remaining, hand_over)
            except SubscriptionNotFoundError as missing:
                raise await self._confirmed(missing, subscription) from missing
            began = hand_over is not None and hand_over.began
            if began and not taken:
                return ()
            if not taken and consumer.config.push is not None:
                # Nobody tells us when a push consumer is gone: it is just quiet.
                await self._catalogue.consumer_info(subscription)
            # It may have been configured anew while we waited.
            consumer = self._catalogue.latest(consumer)
            deliveries = await self._sifted(consumer, taken)
            if deliveries or began or self._clock.monotonic() >= until:
                self._remember(consumer, deliveries)
                return deliveries

    async def _take(
        self,
        consumer: Consumer,
        max_messages: int,
        max_bytes: int,
        wait: float,
        hand_over: HandingOver | None,
    ) -> list[Delivery]:
        """What comes: asked for, pushed, or lent in order."""
        config = consumer.config
        self._connection.wire.check_open()
        if config.push is not None:
            raws = await self._push_inbox(consumer).pull(max_messages, max_bytes, wait)
        elif config.message_ordering or consumer.is_pinned:
            return await self._ordered_queue(consumer).pull(max_messages, max_bytes, wait)
        elif config.enable_exactly_once_delivery:
            return await self._take_in_time(consumer, max_messages, max_bytes, wait)
        else:
            raws = await self._pulling.pull(consumer, max_messages, max_bytes, wait, hand_over)
        return deliveries_of(consumer, raws)

    async def _take_in_time(
        self, consumer: Consumer, max_messages: int, max_bytes: int, wait: float
    ) -> list[Delivery]:
        """What comes was lent after it was asked for, and after the server last said that there is
        nothing. If that is long ago we stood still, or the connection did: it is ours for what is
        left of its time, counted from there, if any is."""
        deadline = consumer.config.ack_deadline
        heartbeat = deadline / _SIGNS_PER_DEADLINE
        wait = min(wait, _SIGNS_PER_REQUEST * heartbeat)
        raws, since = await self._pulling.pull_dated(
            consumer, max_messages, max_bytes, wait, heartbeat=heartbeat
        )
        age = asyncio.get_running_loop().time() - since
        if age < 2 * heartbeat:
            return deliveries_of(consumer, raws)
        late = msgspec.structs.replace
        return [
            late(delivery, ack_deadline=deadline - age)
            for delivery in deliveries_of(consumer, raws)
            if age < _NEARLY * deadline
        ]

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
        inbox = self._pushed.get(consumer.key)
        if inbox is None:
            inbox = PushInbox(self._connection.wire, self._pulling, consumer)
            self._pushed[consumer.key] = inbox
        return inbox

    def _ordered_queue(self, consumer: Consumer) -> OrderedQueue:
        queue = self._ordered.get(consumer.key)
        if queue is None:
            queue = self._ordered[consumer.key] = OrderedQueue(
                consumer,
                self._connection.wire,
                self._pulling,
                self._catalogue,
                self.log,
                delivery_of,
            )
        return queue

    def _denied(self, subject: str) -> None:
        """The server says that this user may not publish there."""
        self._publishing.denied(subject)
        self._pulling.denied(subject)
        for queue in self._ordered.values():
            queue.denied(subject)
        for inbox in self._pushed.values():
            inbox.denied(subject)

    def _lost(self) -> None:
        before = written_before(self._connection.wire.running)
        for loans in self._loans.values():
            loans.lost(before)

    def _forget(self, consumer: Consumer) -> None:
        """It is gone, or another than it was."""
        self._mover.leave(consumer)
        self._loans.pop(consumer.key, None)
        queue = self._ordered.pop(consumer.key, None)
        if queue is not None:
            queue.close()
        inbox = self._pushed.pop(consumer.key, None)
        if inbox is not None:
            inbox.close()

    def _reconfigure(self, before: Consumer, consumer: Consumer) -> None:
        """It is the same, and has been configured anew."""
        self._mover.leave(consumer)
        loans = self._loans.get(consumer.key)
        if loans is not None:
            loans.ack_deadline = consumer.config.ack_deadline
        elif needs_loans(consumer.config) and not needs_loans(before.config):
            # What is on loan was not written down, and stays so.
            until = self._clock.monotonic() + before.config.ack_deadline
            self._loans[consumer.key] = Loans(consumer.config, unwritten_until=until)
        queue = self._ordered.get(consumer.key)
        if queue is not None:
            queue.reconfigure(consumer)
        inbox = self._pushed.get(consumer.key)
        if inbox is not None:
            inbox.reconfigure(consumer)

    async def _sifted(self, consumer: Consumer, taken: list[Delivery]) -> list[Delivery]:
        """What is to be handed over of what came; nothing of it is lost, however this ends."""
        deliveries = taken
        told: dict[int, bytes] = {}
        queue = self._ordered.get(consumer.key)
        try:
            if consumer.config.enable_exactly_once_delivery:
                deliveries = await self._confirming.without_done(consumer, deliveries)
            if consumer.config.filter:
                deliveries = await self._filtered(consumer, deliveries)
            if consumer.config.dead_letter_policy is not None:
                deliveries, told = await self._failing.without_spent(consumer, deliveries)
        except BaseException:
            self._pulling.give_back([delivery.ack_id.encode() for delivery in taken])
            if queue is not None:
                for delivery in taken:
                    queue.settled(delivery.record.sequence, b"-NAK")
            raise
        if queue is not None and len(deliveries) < len(taken):
            kept = {delivery.record.sequence for delivery in deliveries}
            for sequence in [d.record.sequence for d in taken]:
                if sequence not in kept:
                    # A spent one that could not be moved comes again, and its key waits for it.
                    queue.settled(sequence, told.get(sequence, b"+ACK"))
        return deliveries

    async def _filtered(self, consumer: Consumer, deliveries: list[Delivery]) -> list[Delivery]:
        """JetStream knows no attributes: what does not match is acked here."""
        matches = parse_filter(consumer.config.filter).matches
        others = [d for d in deliveries if not matches(d.record.attributes)]
        await self._pulling.write_acks([(d.ack_id.encode(), b"+ACK") for d in others])
        return [d for d in deliveries if matches(d.record.attributes)]

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        self._connection.wire.check_open()
        if not settlements:
            return []
        consumer = await self._catalogue.consumer(subscription)
        config = consumer.config
        foreign = foreign_ids(consumer, settlements)
        loans = self._loans.get(consumer.key) if needs_loans(config) else None
        wire = self._connection.wire
        if loans is not None and wire.connected:
            loans.served_by(wire.lone_server)
        responses = [_SUCCESS] * len(settlements)
        acks: list[tuple[bytes, bytes]] = []
        now = self._clock.monotonic()
        answered: list[Settlement] = []
        late = repeats(settlements)
        exactly_once = config.enable_exactly_once_delivery
        for at, settlement in enumerate(settlements):
            ack_id, verb = settlement.ack_id, settlement.verb
            if exactly_once and (at in late or loans is None or not loans.is_open(ack_id, now)):
                responses[at] = AckResponse.INVALID
                continue
            if at in foreign or at in late:
                continue
            if verb is _ACK:
                acks.append((ack_id.encode(), b"+ACK"))
            elif verb is _RELEASE:
                acks += self._releases.giving_back([ack_id.encode()])
            else:
                answer = await self._failing.answer(consumer, settlement, loans)
                acks.append((ack_id.encode(), answer))
            answered.append(settlement)
        queue = self._ordered.get(consumer.key)
        if acks and (exactly_once or queue is not None):
            # In order, the next of a key goes only when the server is done with the one before.
            if queue is not None:
                for sequence, answer in told(acks):
                    queue.settling(sequence, answer)
            with self._confirming.of(consumer, acks):
                await self._pulling.write_acks_and_wait(acks)
        elif acks:
            await self._pulling.write_acks(acks)
        # Only now: a call that fails is made again, and must find them as they were.
        if loans is not None:
            loans.wrote(written_before(wire.running))
            for settlement in answered:
                loans.settled(settlement, now)
        if queue is not None:
            for sequence, answer in told(acks):
                queue.settled(sequence, answer)
        if (inbox := self._pushed.get(consumer.key)) is not None:
            inbox.settled(answered)
        return responses

    async def leave(self, subscription: str) -> None:
        consumer = self._catalogue.known(subscription)
        if consumer is None:
            return
        for ahead in (self._ordered.get(consumer.key), self._pushed.get(consumer.key)):
            if ahead is not None:
                await ahead.leave()

    async def note_releases(self, subscription: str) -> None:
        consumer = await self._catalogue.consumer(subscription)
        await self._releases.find()
        self._releases.follow(consumer)

    async def attempt(self, subscription: str, ack_id: str) -> int:
        consumer = await self._catalogue.consumer(subscription)
        lent = parse_ack_subject(ack_id.encode())
        return max(lent.delivered - await self._releases.count(consumer, lent.sequence), 1)

    async def ping(self) -> float:
        return await self._connection.ping()

    async def aclose(self) -> None:
        await self._mover.close()
        await self._catalogue.close()
        ahead: list[OrderedQueue | PushInbox] = [*self._ordered.values(), *self._pushed.values()]
        try:
            await asyncio.gather(*(one.leave() for one in ahead), self._pulling.close())
        finally:
            # Nobody who is told of the one goes on before the other has begun.
            for one in ahead:
                one.close()
            await self._connection.close()

    def _remember(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Only where answers need more than the ack id says."""
        if not deliveries:
            return
        if needs_loans(consumer.config):
            loans = self._loans.get(consumer.key)
            if loans is None:
                loans = self._loans[consumer.key] = Loans(consumer.config)
            wire, now = self._connection.wire, self._clock.monotonic()
            wire.running.begin()
            loans.wrote(written_before(wire.running))
            if wire.connected:
                loans.served_by(wire.lone_server)
                loans.begin(deliveries, now)
            else:
                # They came a moment before the connection went.
                loans.begin(deliveries, now)
                loans.lost(written_before(wire.running))
        if (inbox := self._pushed.get(consumer.key)) is not None:
            inbox.lend([delivery.ack_id for delivery in deliveries])


def _says_missing(answer: Receipt | PublishFault) -> bool:
    return isinstance(answer, PublishFault) and isinstance(answer.error, TopicNotFoundError)


def _refusal(topic: str, draft: Draft, subjects: Sequence[str]) -> InvalidArgumentError | None:
    """What is wrong with the subject of a draft, if anything is."""
    try:
        check_subject(topic, draft.subject or topic, subjects)
    except InvalidArgumentError as error:
        return error
    return None
