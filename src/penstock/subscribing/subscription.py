"""A subscription: the handle that users create, listen on, open and close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Unpack, overload

from penstock.broker import Broker, SubscriptionStatus
from penstock.capabilities import (
    check_seek,
    check_snapshot,
    check_subscription,
    update_subscription,
)
from penstock.clock import Clock
from penstock.config import SubscriptionConfig, SubscriptionName, check_name
from penstock.ensuring import ensure_subscription
from penstock.errors import (
    ClosedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.message import AckResponse, Message, Verb
from penstock.observing.observer import Observer
from penstock.subscribing.closing import CloseReport
from penstock.subscribing.events import F
from penstock.subscribing.iteration import Iteration
from penstock.subscribing.options import (
    StreamOptions,
    SubscriberOptions,
    SubscriptionOptions,
    check_options,
)
from penstock.subscribing.source import Source
from penstock.subscribing.stream import MessageStream

_STREAM_OPTIONS = {field.name for field in fields(SubscriberOptions)}
_NONE_HAS_A_MEANING = {"ack_deadline", "lease_extension"}
_BROKER_OPTIONS = {field.name for field in fields(SubscriptionConfig)} - {"name", "topic"}


class Subscription:
    """Where messages of a topic are received.

    Made by `pubsub.subscription(…)` or `topic.subscription(…)`; it may or may not exist in the
    broker. Options are those of `SubscriberOptions` and, for `create`, `SubscriptionConfig`.

    Events: 'message' (message), 'error' (exception), 'close' ().
    """

    def __init__(
        self,
        name: str,
        *,
        topic: str | None,
        broker: Callable[[], Awaitable[Broker]],
        clock: Clock,
        running: set[MessageStream],
        observer: Observer | None = None,
        **options: Unpack[SubscriptionOptions],
    ) -> None:
        if isinstance(name, SubscriptionName):  # As a broker lists it.
            topic = topic or name.topic
            name = name.name
        self._name = check_name("Subscription", name)
        self._topic = topic
        self._address = SubscriptionName(name, topic) if topic is not None else name
        self.source = Source(
            self._address, topic=topic, broker=broker, clock=clock, observer=observer
        )
        self.running = running
        """The streams that run, of this and of other subscriptions."""
        self._stream: MessageStream | None = None
        self._iteration: Iteration | None = None
        self._options = SubscriberOptions()
        self._config: dict[str, Any] = {}
        check_options(f"Subscription {name!r}", options, _STREAM_OPTIONS | _BROKER_OPTIONS)
        self._take_options(options)
        # Refuse options the broker would refuse now, not at create().
        SubscriptionConfig(name=name, topic=topic or "unknown", **self._config)
        self.source.exactly_once = self._config.get("enable_exactly_once_delivery")

    def __repr__(self) -> str:
        state = "open" if self.is_open else "not open"
        return f"<Subscription {self._name!r} of {self._topic!r}, {state}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def topic(self) -> str | None:
        """The topic's name, when it was given."""
        return self._topic

    @property
    def clock(self) -> Clock:
        return self.source.clock

    @property
    def config_given(self) -> Mapping[str, Any]:
        """What was asked of the broker, as `create` does."""
        return MappingProxyType(self._config)

    @property
    def is_open(self) -> bool:
        return self._stream is not None and self._stream.active

    @property
    def stream(self) -> MessageStream | None:
        """The stream of the last `open()`."""
        return self._stream

    # In the broker.

    async def create(self) -> Subscription:
        """Create it in the broker; it sees what is published from then on."""
        config = self._wanted()
        broker = await self.source.broker()
        check_subscription(broker, config)
        await broker.admin.create_subscription(config)
        return self

    async def ensure(self) -> Subscription:
        """Create it, or see to it that it is as this handle was told.

        What exists and differs is changed, its backlog kept. What cannot be changed is a
        `FailedPreconditionError` that says what differs. Options that the handle was not given are
        left as they are.
        """
        await ensure_subscription(await self.source.broker(), self._wanted(), self._config)
        return self

    async def update(self, **options: Unpack[SubscriptionOptions]) -> Subscription:
        """Change these options of a subscription that exists, and nothing else about it: its
        backlog is kept, and what is on loan stays so. An open stream goes on by them.

        None takes a policy away. See `set_options` for what concerns the stream alone.
        """
        check_options(f"Subscription {self._name!r} in the broker", options, _BROKER_OPTIONS)
        broker = await self.source.broker()
        found = (await broker.admin.describe_subscription(self._address)).config
        changes: dict[str, Any] = {**options}
        await update_subscription(broker, replace(found, **changes))
        self._config |= changes
        if "enable_exactly_once_delivery" in options:
            self.source.exactly_once = options["enable_exactly_once_delivery"]
        if "ack_deadline" in options:
            self.set_options(ack_deadline=options["ack_deadline"])
        return self

    def _wanted(self) -> SubscriptionConfig:
        if self._topic is None:
            raise InvalidArgumentError(
                f"Subscription {self._name!r} cannot be created without a topic; "
                "use topic.subscription(name) or pubsub.subscription(name, topic=…)"
            )
        return SubscriptionConfig(name=self._name, topic=self._topic, **self._config)

    async def delete(self) -> None:
        """Delete it with its backlog. An open stream fails."""
        await (await self.source.broker()).admin.delete_subscription(self._address)

    async def exists(self) -> bool:
        try:
            await self.describe()
        except NotFoundError:
            return False
        return True

    async def describe(self) -> SubscriptionStatus:
        """Its configuration, backlog and the age of its oldest message."""
        return await (await self.source.broker()).admin.describe_subscription(self._address)

    async def create_snapshot(self, snapshot: str) -> None:
        """Remember what is not acked now, to `seek` back to; expires after seven days."""
        broker = await self.source.broker()
        check_snapshot(broker, snapshot)
        await broker.admin.create_snapshot(snapshot, self._address)

    async def seek(self, to: datetime | str) -> None:
        """Go to a time (aware) or a snapshot (by name): what is after it is delivered again."""
        broker = await self.source.broker()
        check_seek(broker, self._name, to)
        await broker.admin.seek(self._address, to)

    # Receiving.

    @overload
    def on(self, event: str) -> Callable[[F], F]: ...
    @overload
    def on(self, event: str, listener: F) -> F: ...
    def on(self, event: str, listener: Any = None) -> Any:
        """Add a listener, plain or async; usable as a decorator."""
        if listener is None:
            self.source.events.listeners(event)
            return lambda function: self.on(event, function)
        self.source.events.add(event, listener)
        self._listeners_changed()
        return listener

    def off(self, event: str, listener: Callable[..., Any]) -> None:
        self.source.events.remove(event, listener)
        self._listeners_changed()

    def open(self) -> None:
        """Start receiving. No effect while open."""
        if not self.is_open:
            self._stream = MessageStream(self, self._options)
            self._stream.start()

    def pause(self) -> None:
        """Deliver nothing new until `resume`; leases keep running."""
        self._opened().pause()

    def resume(self) -> None:
        self._opened().resume()

    def set_options(self, **options: Unpack[StreamOptions]) -> None:
        """Change options of the stream, also while it is open. What the broker knows of the
        subscription does not change."""
        fixed = options.keys() & (_BROKER_OPTIONS - _STREAM_OPTIONS)
        if fixed:
            raise InvalidArgumentError(
                f"Subscription {self._name!r} cannot change {', '.join(sorted(fixed))} while it "
                f"exists, only {', '.join(sorted(_STREAM_OPTIONS))}"
            )
        check_options(f"Subscription {self._name!r}", options, _STREAM_OPTIONS)
        self._take_options(options)
        if self._stream is not None and self._stream.active:
            self._stream.set_options(self._options)

    async def close(
        self, *, timeout: float | None = None, nack_waiting: bool = False
    ) -> CloseReport:
        """Stop pulling, finish what is in flight, emit 'close'; says what was left.

        Waits for messages to be settled or to expire, at most `timeout` seconds; then handlers
        are cancelled and their messages nacked. `nack_waiting` gives back at once what no
        handler has started. Idempotent, and safe when it was never opened.
        """
        streams = self._streams() or ([self._stream] if self._stream is not None else [])
        endings = [stream.begin_to_stop(timeout, nack_waiting) for stream in streams]
        reports = await asyncio.gather(*map(asyncio.shield, endings))
        await self.source.events.finish(timeout=5.0)
        return sum(reports, CloseReport())

    async def wait_closed(self) -> None:
        """Wait until it is closed, whoever closes it; raises what ended it, when nobody did.

        Returns at once when it was never opened. Cancelling it closes nothing.
        """
        if self._stream is not None:
            await self._stream.wait_stopped()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Receive by iterating, one loop at a time.

        Leaving the loop pauses the subscription and gives back what was fetched and not yet
        seen; the message in hand can still be settled. A failure that ends the stream is raised.
        """
        if self.source.events.listeners("message"):
            raise FailedPreconditionError(
                f"Subscription {self._name!r} has a 'message' listener; listen or iterate, not both"
            )
        if self._iteration is not None:
            self._iteration.leave()
        self.open()
        self._iteration = Iteration(self._opened())
        return self._iteration.messages()

    # The owner of messages that were made by hand; see `Message`.

    def settle(self, message: Message, verb: Verb, seconds: float | None) -> None:
        self._opened().deliveries.settle(message, verb, seconds)

    async def settle_with_response(
        self, message: Message, verb: Verb, *, first: bool
    ) -> AckResponse:
        if not self.is_open:
            return AckResponse.FAILED_PRECONDITION
        return await self._opened().deliveries.settle_with_response(message, verb, first=first)

    def modify_ack_deadline(self, message: Message, seconds: float) -> None:
        self._opened().deliveries.modify_ack_deadline(message, seconds)

    def _listeners_changed(self) -> None:
        for stream in self._streams():
            stream.listeners_changed()

    def _streams(self) -> list[MessageStream]:
        return [stream for stream in self.running if stream.source is self.source]

    def _opened(self) -> MessageStream:
        if self._stream is None or not self._stream.active:
            raise ClosedError(f"Subscription {self._name!r} is not open; call open() first")
        return self._stream

    def _take_options(self, options: SubscriptionOptions | StreamOptions) -> None:
        given: dict[str, Any] = {n: value for n, value in options.items() if value is not None}
        self._config |= {name: given[name] for name in given.keys() & _BROKER_OPTIONS}
        for name in _NONE_HAS_A_MEANING & options.keys():
            given.setdefault(name, None)
        for_stream = {name: given[name] for name in given.keys() & _STREAM_OPTIONS}
        self._options = replace(self._options, **for_stream)
