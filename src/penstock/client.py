"""The client: one connection, and handles on the topics and subscriptions behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Self, TypedDict, Unpack

from penstock.broker import Broker, TopicStatus
from penstock.capabilities import check_snapshot, check_topic, update_topic
from penstock.clock import Clock
from penstock.config import DUPLICATE_WINDOW, TopicConfig, check_name
from penstock.connect import connect
from penstock.dead_letters import DeadLetters
from penstock.ensuring import ensure_topic
from penstock.errors import ClosedError, InvalidArgumentError, NotFoundError
from penstock.lifetime import AsyncClosing
from penstock.message import Draft, PublishFault
from penstock.observing.observed import ObservedBroker
from penstock.observing.observer import Observer, Observers
from penstock.subscribing import MessageStream, Subscription
from penstock.subscribing.closing import CloseReport
from penstock.subscribing.options import SubscriptionOptions, check_options

_DEFAULT_URL = "memory://"
_TOPIC_OPTIONS = {field.name for field in fields(TopicConfig)} - {"name"}


class PubSub(AsyncClosing):
    """A client of one broker.

    Connects to `url` when first used or entered, or uses the `broker` it is given. Closing it
    closes every subscription opened through it, then the connection if it made it: a broker that
    was given is its giver's to close. Everything that needs a broker is given one of these.
    """

    def __init__(
        self,
        url: str = _DEFAULT_URL,
        *,
        broker: Broker | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        if not isinstance(url, str) or "://" not in url:
            raise InvalidArgumentError(
                f"PubSub takes an address such as 'memory://', not a {type(url).__name__} "
                "without '://'"
            )
        if broker is not None and url != _DEFAULT_URL:
            raise InvalidArgumentError("PubSub takes an address or a broker, not both")
        self._url = url
        self._clock = clock or Clock()
        self._connection = broker
        self._owns_connection = broker is None
        self.observer: Observer | None = None
        self._connecting = asyncio.Lock()
        self._streams: set[MessageStream] = set()
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        if observer is not None:
            self.observe(observer)

    async def __aenter__(self) -> Self:
        await self.broker()
        return self

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def streams(self) -> frozenset[MessageStream]:
        """The streams of subscriptions that are open."""
        return frozenset(self._streams)

    def observe(self, observer: Observer) -> None:
        """Tell it of everything from here on, beside whoever was told before."""
        told = self.observer.observers if isinstance(self.observer, Observers) else ()
        self.observer = Observers(*told, observer)
        if self._connection is not None:
            self._connection = ObservedBroker(self._connection, Observers(observer))

    def topic(self, name: str) -> Topic:
        """A handle; the topic need not exist yet."""
        self._check_open()
        return Topic(self, name)

    def subscription(
        self, name: str, *, topic: str | None = None, **options: Unpack[SubscriptionOptions]
    ) -> Subscription:
        """A handle; `topic` is needed only to create it. Options: see `Subscription`."""
        self._check_open()
        if topic is not None:
            check_name("Topic", topic)
        return Subscription(
            name,
            topic=topic,
            broker=self.broker,
            clock=self._clock,
            running=self._streams,
            observer=self.observer,
            **options,
        )

    def dead_letters(self, topic: str) -> DeadLetters:
        """What was given up and went to this topic: to be looked at, replayed and discarded."""
        self._check_open()
        return DeadLetters(self, topic)

    async def topics(self) -> Sequence[str]:
        return await (await self.broker()).admin.list_topics()

    async def subscriptions(self) -> Sequence[str]:
        return await (await self.broker()).admin.list_subscriptions()

    async def delete_snapshot(self, snapshot: str) -> None:
        broker = await self.broker()
        check_snapshot(broker, snapshot)
        await broker.admin.delete_snapshot(snapshot)

    async def broker(self) -> Broker:
        """The connection, made on first use."""
        if self._connection is None:
            async with self._connecting:
                self._check_open()
                if self._connection is None:
                    broker = await connect(self._url, clock=self._clock)
                    told = self.observer
                    self._connection = broker if told is None else ObservedBroker(broker, told)
        return self._connection

    async def aclose(self, *, timeout: float | None = None) -> None:
        """Close what was opened through this client, then disconnect. Idempotent.

        `timeout` bounds the wait for handlers, as in `Subscription.close`. Cancelling the caller
        does not stop the closing.
        """
        streams = list(self._streams)
        # Here and not in a task of its own: streams notice when one of their handlers calls.
        endings = [stream.begin_to_stop(timeout) for stream in streams]
        if self._closing is None:
            # Owned by whoever awaits aclose(); shielded, so that it always completes.
            closing = self._close(streams, endings)
            self._closing = asyncio.get_running_loop().create_task(closing)
        await asyncio.shield(self._closing)

    async def _close(
        self, streams: Sequence[MessageStream], endings: Sequence[asyncio.Future[CloseReport]]
    ) -> None:
        try:
            try:
                await asyncio.gather(*map(asyncio.shield, endings))
            except asyncio.CancelledError:
                # Whoever cancels all tasks is in a hurry; what is in hand goes back all the same.
                for stream in streams:
                    stream.begin_to_stop(0)
                await asyncio.gather(*map(asyncio.shield, endings))
                raise
            listening = {stream.source.events for stream in streams}
            await asyncio.gather(*(events.finish(timeout=5.0) for events in listening))
        finally:
            self._closed = True
            async with self._connecting:
                connection, self._connection = self._connection, None
            if connection is not None and self._owns_connection:
                await connection.aclose()

    def _check_open(self) -> None:
        if self._closing is not None or self._closed:
            raise ClosedError("This PubSub client is closed; make a new one")


class TopicOptions(TypedDict, total=False):
    """The fields of `TopicConfig`, as keywords."""

    message_retention: float
    duplicate_window: float
    routed_attributes: Sequence[str]
    replicas: int | None
    subjects: Sequence[str]
    work_queue: bool


class Topic:
    """Where messages are published. Made by `pubsub.topic(name)`; it may or may not exist."""

    __slots__ = ("_name", "_pubsub")

    def __init__(self, pubsub: PubSub, name: str) -> None:
        self._pubsub = pubsub
        self._name = check_name("Topic", name)

    def __repr__(self) -> str:
        return f"<Topic {self._name!r}>"

    @property
    def name(self) -> str:
        return self._name

    async def create(
        self,
        *,
        message_retention: float = 0.0,
        duplicate_window: float = DUPLICATE_WINDOW,
        routed_attributes: Sequence[str] = (),
        replicas: int | None = None,
        subjects: Sequence[str] = (),
        work_queue: bool = False,
    ) -> Topic:
        """Create it in the broker.

        `message_retention`: seconds to keep every message for replay, acked or not.
        `duplicate_window`: seconds within which a message id is stored once.
        `routed_attributes`: attributes that subscriptions filter by; they become part of each
        message's subject, which JetStream can filter on the server.
        `replicas`: copies that a cluster's servers keep; by default as many as are of use.
        `subjects`: those it stores, instead of its own name and all below it.
        `work_queue`: a message stays until it is acked, and is gone then.
        """
        config = TopicConfig(
            name=self._name,
            message_retention=message_retention,
            duplicate_window=duplicate_window,
            routed_attributes=_keys("routed_attributes", routed_attributes),
            replicas=replicas,
            subjects=_keys("subjects", subjects),
            work_queue=work_queue,
        )
        broker = await self._pubsub.broker()
        check_topic(broker, config)
        await broker.admin.create_topic(config)
        return self

    async def ensure(self, **options: Unpack[TopicOptions]) -> Topic:
        """Create it, or see to it that it is as these options say: those of `create`.

        What exists and differs is changed, its messages kept. What cannot be changed is a
        `FailedPreconditionError` that says what differs. Options that are not given are left as
        they are.
        """
        given = self._given(options)
        wanted = TopicConfig(name=self._name, **given)
        await ensure_topic(await self._pubsub.broker(), wanted, given)
        return self

    async def update(self, **options: Unpack[TopicOptions]) -> Topic:
        """Change these options of a topic that exists, and nothing else about it."""
        given = self._given(options)
        broker = await self._pubsub.broker()
        found = (await broker.admin.describe_topic(self._name)).config
        await update_topic(broker, replace(found, **given))
        return self

    def _given(self, options: TopicOptions) -> dict[str, Any]:
        check_options(f"Topic {self._name!r}", options, _TOPIC_OPTIONS)
        given: dict[str, Any] = {name: one for name, one in options.items() if one is not None}
        for name in given.keys() & {"routed_attributes", "subjects"}:
            given[name] = _keys(name, given[name])
        return given

    async def delete(self) -> None:
        """Delete it. Its subscriptions deliver what they hold, then fail."""
        await (await self._pubsub.broker()).admin.delete_topic(self._name)

    async def exists(self) -> bool:
        try:
            await self.describe()
        except NotFoundError:
            return False
        return True

    async def describe(self) -> TopicStatus:
        return await (await self._pubsub.broker()).admin.describe_topic(self._name)

    def subscription(self, name: str, **options: Unpack[SubscriptionOptions]) -> Subscription:
        """A handle on a subscription of this topic. Options: see `Subscription`."""
        return self._pubsub.subscription(name, topic=self._name, **options)

    async def publish_message(
        self,
        data: bytes | bytearray | memoryview = b"",
        attributes: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        *,
        message_id: str | None = None,
        subject: str | None = None,
    ) -> str:
        """Publish one message; returns its id once the broker has stored it.

        With a `message_id` of your own, repeating the call within the topic's duplicate window
        stores it once.
        """
        if self._pubsub.observer is not None:
            attributes = self._pubsub.observer.sending(self._name, attributes)
        draft = Draft.of(data, attributes, ordering_key, message_id, subject)
        broker = self._pubsub._connection or await self._pubsub.broker()
        answers = await broker.publish(self._name, (draft,))
        answer = answers[0]
        if isinstance(answer, PublishFault):
            raise answer.error
        return answer.message_id


def _keys(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise InvalidArgumentError(f"{what} must be a list, not {names!r}")
    return tuple(names)
