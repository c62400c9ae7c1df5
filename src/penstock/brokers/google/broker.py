"""The data path of the Google adapter, and what its parts share."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from math import ceil
from typing import Self

from penstock.broker import Capabilities
from penstock.brokers.google.admin import GoogleAdmin
from penstock.brokers.google.burying import bury
from penstock.brokers.google.connection import Connection
from penstock.brokers.google.inbox import Inbox
from penstock.brokers.google.options import GoogleOptions
from penstock.brokers.google.publishing import Publishing
from penstock.brokers.google.settling import settle
from penstock.clock import Clock
from penstock.config import SubscriptionConfig
from penstock.errors import (
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnimplementedError,
)
from penstock.googlepubsub.messages import message
from penstock.googlepubsub.names import SUBSCRIPTIONS, Names
from penstock.message import (
    AckResponse,
    Delivery,
    Draft,
    PublishFault,
    Receipt,
    Settlement,
    Verb,
)
from penstock.optional_verbs import OnSent
from penstock.rules.repeats import repeats

# A letter that could not be stored will hardly be so a moment later.
_REJECTED_AGAIN_AFTER = 10
# What a draft is refused for; nothing else is its own.
_OF_A_DRAFT = (InvalidArgumentError, UnimplementedError)
# A stream's deadline where the subscription may not be looked at.
_ASSUMED_DEADLINE = 60.0


class GoogleBroker:
    """Google Pub/Sub behind the port.

    Delivery attempts are counted by Google only where there is a dead-letter policy; elsewhere
    every delivery says 0. Ids of our own travel as an attribute: Google does not drop duplicates.
    """

    capabilities = Capabilities(
        durable=True,
        filters=True,
        dead_letters=True,
        least_delivery_attempts=5,
        retry_policy=True,
        delayed_nack=True,
        sets_deadlines=True,
        exactly_once=True,
        outlives_topic=True,
        updates=True,
        detaching=True,
        expiration=True,
        seek=True,
        snapshots=True,
    )
    name = "Google Pub/Sub"
    log = None

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.project = connection.options.project
        self._connection = connection
        self._clock = clock
        self._names = Names(self.project)
        self._publishing = Publishing(connection, self._names)
        self.admin = GoogleAdmin(connection, self._names, self._changed)
        self._inboxes: dict[str, Inbox] = {}

    @classmethod
    async def connect(cls, url: str, clock: Clock) -> Self:
        connection = Connection(GoogleOptions.of(url))
        await connection.open()
        return cls(connection, clock)

    async def publish(
        self, topic: str, drafts: Sequence[Draft], on_sent: OnSent | None = None
    ) -> Sequence[Receipt | PublishFault]:
        self._connection.check_open()
        answers = await self._publishing.publish(topic, drafts, on_sent)
        errors = {answer.error for answer in answers if isinstance(answer, PublishFault)}
        if len(errors) == 1 and not any(isinstance(answer, Receipt) for answer in answers):
            [error] = errors
            if not isinstance(error, _OF_A_DRAFT):
                raise error  # It is about the topic, not about any of them.
        return answers

    async def publish_telling(
        self, on_sent: OnSent, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        return await self.publish(topic, drafts, on_sent)

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        self._connection.check_open()
        if max_messages < 1:
            return []
        inbox = await self._inbox(subscription)
        try:
            deliveries = await inbox.pull(max_messages, max_bytes, wait)
        except PenstockError as error:
            if not error.retryable:
                await self._forget(subscription, error)
            raise
        if not deliveries and wait:
            await self._check_topic(subscription, inbox)
        return deliveries

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        self._connection.check_open()
        if not settlements:
            return []
        inbox = await self._inbox(subscription)
        resource = self._names.resource(SUBSCRIPTIONS, subscription)
        config = inbox.config
        failed: dict[str, AckResponse] = {}
        late = repeats(settlements)
        first = [one for at, one in enumerate(settlements) if at not in late]
        for seconds, ack_ids in (await self._groups(inbox, first)).items():
            failed |= await settle(
                self._connection,
                resource,
                ack_ids,
                seconds,
                patience=config.ack_deadline,
                exactly_once=config.enable_exactly_once_delivery,
            )
            if seconds:
                inbox.lending.extended(ack_ids, self._clock.monotonic() + seconds)
            else:
                inbox.lending.settled(ack_ids)
        success = AckResponse.SUCCESS
        again = AckResponse.INVALID if config.enable_exactly_once_delivery else success
        return [
            again if at in late else failed.get(settlement.ack_id, success)
            for at, settlement in enumerate(settlements)
        ]

    async def ping(self) -> float:
        began = self._clock.monotonic()
        request = message("ListTopicsRequest")(project=f"projects/{self.project}", page_size=1)
        with suppress(PermissionDeniedError):  # Whoever refuses has been reached.
            await self._connection.call("ListTopics", request)
        return self._clock.monotonic() - began

    async def aclose(self) -> None:
        for name in list(self._inboxes):
            await self._forget(name, ClosedError("This Google Pub/Sub broker is closed"))
        await self._publishing.close()
        await self._connection.close()

    async def _inbox(self, subscription: str) -> Inbox:
        inbox = self._inboxes.get(subscription)
        if inbox is None:
            config = await self._config(subscription)
            self._connection.check_open()
            resource = self._names.resource(SUBSCRIPTIONS, subscription)

            async def extend(ack_ids: Sequence[str], seconds: int) -> None:
                await settle(
                    self._connection, resource, ack_ids, seconds, patience=0, exactly_once=False
                )

            inbox = self._inboxes.get(subscription)
            if inbox is None:
                inbox = Inbox(self._connection, resource, config, self._clock, extend)
                self._inboxes[subscription] = inbox
        return inbox

    async def _config(self, subscription: str) -> SubscriptionConfig:
        """A subscriber need not be allowed to look at its subscription."""
        try:
            return (await self.admin.describe_subscription(subscription)).config
        except PermissionDeniedError:
            return SubscriptionConfig(
                name=subscription, topic="unknown", ack_deadline=_ASSUMED_DEADLINE
            )

    async def _forget(self, subscription: str, error: PenstockError) -> None:
        inbox = self._inboxes.pop(subscription, None)
        if inbox is not None:
            await inbox.close(error)

    async def _changed(self, subscription: str, config: SubscriptionConfig | None) -> None:
        """It is `config` from now on, or deleted: streams may take a while to hear of that."""
        if config is None:
            await self._forget(subscription, SubscriptionNotFoundError(subscription))
        elif subscription in self._inboxes:
            self._inboxes[subscription].config = config

    async def _check_topic(self, subscription: str, inbox: Inbox) -> None:
        """Google says nothing when a topic is deleted: its subscriptions are just quiet."""
        try:
            status = await self.admin.describe_subscription(subscription)
        except PermissionDeniedError:
            return
        except NotFoundError as error:
            await self._forget(subscription, error)
            raise
        inbox.config = status.config
        if status.topic_deleted and not inbox.lending.count(self._clock.monotonic()):
            raise TopicNotFoundError(
                inbox.config.topic,
                f"it was deleted and subscription {subscription!r} has nothing left; delete the "
                "subscription, or create it again on another topic",
            )

    async def _groups(
        self, inbox: Inbox, settlements: Sequence[Settlement]
    ) -> dict[int | None, list[str]]:
        """Ack ids by what is to be done: None acks, 0 gives back, seconds extend."""
        rejected = [one.ack_id for one in settlements if one.verb is Verb.REJECT]
        buried = await self._buried(inbox, rejected) if rejected else rejected
        groups: dict[int | None, list[str]] = {}
        for settlement in settlements:
            seconds: int | None = 0
            match settlement.verb:
                case Verb.ACK:
                    seconds = None
                case Verb.EXTEND | Verb.NACK:
                    # A nack that waits is a deadline that nobody keeps.
                    seconds = min(ceil(settlement.seconds or 0), 600)
                case Verb.REJECT:
                    seconds = None if settlement.ack_id in buried else _REJECTED_AGAIN_AFTER
            groups.setdefault(seconds, []).append(settlement.ack_id)
        return groups

    async def _buried(self, inbox: Inbox, ack_ids: Sequence[str]) -> Container[str]:
        """Those of the rejected that need not come again."""
        policy = inbox.config.dead_letter_policy
        if policy is None:
            return ack_ids
        found = [inbox.lending.find(ack_id) for ack_id in ack_ids]
        held = [delivery for delivery in found if delivery is not None]
        return await bury(self._publishing, self.project, inbox.config, policy, held)
