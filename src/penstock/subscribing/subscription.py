"""A subscription: the handle that users create, listen on, open and close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from inspect import isawaitable
from types import MappingProxyType
from typing import Any, overload

from penstock.broker import Broker, SubscriptionStatus
from penstock.clock import Clock
from penstock.config import SubscriptionConfig, check_name
from penstock.errors import (
    ClosedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.message import Message
from penstock.subscribing.deliveries import Handler
from penstock.subscribing.events import Events, F
from penstock.subscribing.iteration import Iteration
from penstock.subscribing.options import SubscriberOptions
from penstock.subscribing.stream import CloseReport, MessageStream

_log = logging.getLogger("penstock")
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
        opened: set[Subscription],
        **options: Any,
    ) -> None:
        self._name = check_name("Subscription", name)
        self._topic = topic
        self._broker = broker
        self._clock = clock
        self._opened_handles = opened
        self._events = Events(f"Subscription {name!r}", ("message", "error", "close"))
        self._streams: list[MessageStream] = []
        self._stream: MessageStream | None = None
        self._iteration: Iteration | None = None
        self._options = SubscriberOptions()
        self._config: dict[str, Any] = {}
        self._take_options(options)
        # Refuse options the broker would refuse now, not at create().
        SubscriptionConfig(name=name, topic=topic or "unknown", **self._config)

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
        return self._clock

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
        if self._topic is None:
            raise InvalidArgumentError(
                f"Subscription {self._name!r} cannot be created without a topic; "
                "use topic.subscription(name) or pubsub.subscription(name, topic=…)"
            )
        config = SubscriptionConfig(name=self._name, topic=self._topic, **self._config)
        await (await self._broker()).admin.create_subscription(config)
        return self

    async def delete(self) -> None:
        """Delete it with its backlog. An open stream fails."""
        await (await self._broker()).admin.delete_subscription(self._name)

    async def exists(self) -> bool:
        try:
            await self.describe()
        except NotFoundError:
            return False
        return True

    async def describe(self) -> SubscriptionStatus:
        """Its configuration, backlog and the age of its oldest message."""
        return await (await self._broker()).admin.describe_subscription(self._name)

    async def create_snapshot(self, snapshot: str) -> None:
        """Remember what is not acked now, to `seek` back to; expires after seven days."""
        await (await self._broker()).admin.create_snapshot(snapshot, self._name)

    async def seek(self, to: datetime | str) -> None:
        """Go to a time (aware) or a snapshot (by name): what is after it is delivered again."""
        await (await self._broker()).admin.seek(self._name, to)

    # Receiving.

    @overload
    def on(self, event: str) -> Callable[[F], F]: ...
    @overload
    def on(self, event: str, listener: F) -> F: ...
    def on(self, event: str, listener: Any = None) -> Any:
        """Add a listener, plain or async; usable as a decorator."""
        if listener is None:
            self._events.listeners(event)
            return lambda function: self.on(event, function)
        self._events.add(event, listener)
        self._listeners_changed()
        return listener

    def off(self, event: str, listener: Callable[..., Any]) -> None:
        self._events.remove(event, listener)
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

    def set_options(self, **options: Any) -> None:
        """Change options of the stream, also while it is open. What the broker knows of the
        subscription does not change."""
        unknown = options.keys() - _STREAM_OPTIONS
        if unknown:
            raise InvalidArgumentError(
                f"Subscription {self._name!r} cannot set {_list(unknown)}; while it exists only "
                f"these can change: {_list(_STREAM_OPTIONS)}"
            )
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
        return await self.close_for(asyncio.current_task(), timeout, nack_waiting)

    async def close_for(
        self, caller: asyncio.Task[Any] | None, timeout: float | None, nack_waiting: bool = False
    ) -> CloseReport:
        """`close`, on behalf of a task that waits for it, perhaps one of its own handlers."""
        streams = list(self._streams) or ([self._stream] if self._stream is not None else [])
        reports = await asyncio.gather(
            *(stream.stop_for(caller, timeout, nack_waiting) for stream in streams)
        )
        report = sum(reports, CloseReport())
        await self._events.finish(timeout=5.0)
        return report

    def __aiter__(self) -> AsyncIterator[Message]:
        """Receive by iterating, one loop at a time.

        Leaving the loop pauses the subscription and gives back what was fetched and not yet
        seen; the message in hand can still be settled. A failure that ends the stream is raised.
        """
        if self._events.listeners("message"):
            raise FailedPreconditionError(
                f"Subscription {self._name!r} has a 'message' listener; listen or iterate, not both"
            )
        if self._iteration is not None:
            self._iteration.leave()
        self.open()
        self._iteration = Iteration(self._opened(), self._clock)
        return self._iteration.messages()

    # What the stream asks of its subscription.

    def message_handler(self) -> Handler | None:
        listeners = self._events.listeners("message")
        if not listeners:
            return None
        return listeners[0] if len(listeners) == 1 else self._call_all

    def emit(self, event: str, *args: Any) -> None:
        if event == "error" and not self._events.listeners("error"):
            _log.error("Subscription %r: %s", self._name, args[0], exc_info=args[0])
        self._events.emit(event, *args)

    def stream_started(self, stream: MessageStream) -> None:
        self._streams.append(stream)
        self._opened_handles.add(self)

    def stream_stopped(self, stream: MessageStream) -> None:
        self._streams.remove(stream)
        if not self._streams:
            self._opened_handles.discard(self)

    async def broker(self) -> Broker:
        return await self._broker()

    async def exactly_once(self) -> bool:
        known = self._config.get("enable_exactly_once_delivery")
        if known is None:
            known = (await self.describe()).config.enable_exactly_once_delivery
            self._config["enable_exactly_once_delivery"] = known
        return bool(known)

    async def _call_all(self, message: Message) -> None:
        """Every listener, one after the other."""
        for listener in list(self._events.listeners("message")):
            work = listener(message)
            if isawaitable(work):
                await work

    def _listeners_changed(self) -> None:
        for stream in self._streams:
            stream.handler_changed()

    def _opened(self) -> MessageStream:
        if self._stream is None or not self._stream.active:
            raise ClosedError(f"Subscription {self._name!r} is not open; call open() first")
        return self._stream

    def _take_options(self, options: dict[str, Any]) -> None:
        unknown = options.keys() - _STREAM_OPTIONS - _BROKER_OPTIONS
        if unknown:
            raise InvalidArgumentError(
                f"Subscription {self._name!r} has no option {_list(unknown)}; it has "
                f"{_list(_STREAM_OPTIONS | _BROKER_OPTIONS)}"
            )
        given = {name: value for name, value in options.items() if value is not None}
        self._config |= {name: given[name] for name in given.keys() & _BROKER_OPTIONS}
        for name in _NONE_HAS_A_MEANING & options.keys():
            given[name] = options[name]
        for_stream = {name: given[name] for name in given.keys() & _STREAM_OPTIONS}
        self._options = replace(self._options, **for_stream)


def _list(names: set[str] | Any) -> str:
    return ", ".join(sorted(names))
