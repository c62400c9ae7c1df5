"""Streaming pull: keeps the window filled, survives errors, ends in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast

from penstock.broker import Broker
from penstock.clock import Clock
from penstock.errors import ClosedError, FlowControlError, InvalidArgumentError
from penstock.message import MAX_DATA_BYTES, AckResponse, Message, Settlement, Verb
from penstock.subscribing.deliveries import Handler, InFlight
from penstock.subscribing.options import SubscriberOptions
from penstock.subscribing.settling import Settler

T = TypeVar("T")

# An idle pull asks again after this long: often enough to notice a half-open connection.
_PULL_WAIT = 30.0
# Closing may take this much longer than asked, to send the last settlements and to let
# cancelled handlers clean up.
_CLOSING_GRACE = 5.0


class Source(Protocol):
    """The subscription, as its stream sees it."""

    @property
    def name(self) -> str: ...
    @property
    def clock(self) -> Clock: ...
    def message_handler(self) -> Handler | None: ...
    def emit(self, event: str, *args: Any) -> None: ...
    def stream_started(self, stream: MessageStream) -> None: ...
    def stream_stopped(self, stream: MessageStream) -> None: ...
    async def broker(self) -> Broker: ...
    async def exactly_once(self) -> bool: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CloseReport:
    """What closing left, by message id. What was not settled will be delivered again.

    `given_back`: never started. `expired`: not settled before their deadline. `unfinished`: still
    in flight when time ran out. `cancelled`: messages whose handlers were cancelled, settled or
    not. `unsent`: settlements that could not be sent.
    """

    given_back: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    unsent: int = 0

    @property
    def clean(self) -> bool:
        """Everything that was started was settled, and the broker knows."""
        return not (self.expired or self.unfinished or self.cancelled or self.unsent)

    def __add__(self, other: CloseReport) -> CloseReport:
        return CloseReport(
            given_back=self.given_back + other.given_back,
            expired=self.expired + other.expired,
            unfinished=self.unfinished + other.unfinished,
            cancelled=self.cancelled + other.cancelled,
            unsent=self.unsent + other.unsent,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamStatistics:
    """A moment of a stream. `messages` and `bytes` are in the window, `waiting` of them not yet
    with a handler for want of room; `pulls` run now; `failures` in a row."""

    messages: int
    bytes: int
    waiting: int
    pulls: int
    failures: int


class MessageStream:
    """Pulls a subscription's messages and emits them as its 'message' events.

    `start` begins, `pause` and `resume` hold and go on (leases keep running), `stop` ends for
    good. Messages in flight never exceed the flow control unless it allows excess. A pull that
    fails for a passing reason emits 'error' and is repeated with jittered backoff; any other
    failure emits 'error' and stops the stream. 'close' is emitted once, at the end.
    """

    def __init__(self, subscription: Source, options: SubscriberOptions | None = None) -> None:
        self._source = subscription
        self._options = options or SubscriberOptions()
        self._clock = subscription.clock
        self._settler = Settler(
            self._settle,
            clock=self._clock,
            backoff=self._options.backoff,
            patience=self._options.ack_deadline or 60.0,
            on_error=self._emit_error,
            on_refused=lambda settlement, response: self._inflight.refused(settlement, response),
            on_sent=self._wake_pullers,
        )
        self._inflight = InFlight(
            subscription.name,
            self._options,
            clock=self._clock,
            settler=self._settler,
            exactly_once=subscription.exactly_once,
            on_error=self._emit_error,
            on_change=self._changed,
        )
        self._context = copy_context()
        self._pullers: list[asyncio.Task[None]] = []
        self._sender: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[CloseReport] | None = None
        self._close_by: float | None = None
        self._closers: set[asyncio.Task[Any]] = set()
        self._given_back: list[str] = []
        self._ahead: int | None = None
        self.failure: Exception | None = None
        """What ended the stream, when it was not asked to end."""
        self._room = asyncio.Event()
        self._starved = False
        self._progress = asyncio.Event()
        self._paused = False
        self._failures = 0
        self._retry_at = 0.0

    @property
    def active(self) -> bool:
        """Started and not stopped; a paused stream is active."""
        return self._sender is not None and self._closing is None

    def holds(self, message: Message) -> bool:
        """The message is ours: neither settled nor expired."""
        return message in self._inflight

    def statistics(self) -> StreamStatistics:
        window = self._inflight.window
        return StreamStatistics(
            messages=window.messages,
            bytes=window.bytes,
            waiting=self._inflight.waiting,
            pulls=len(self._pullers),
            failures=self._failures,
        )

    def start(self) -> None:
        """Begin to pull. No effect while running; a stopped stream cannot start again."""
        if self._closing is not None:
            raise ClosedError(
                f"The stream of subscription {self._source.name!r} was stopped; "
                "open the subscription again for a new one"
            )
        if self._sender is None:
            # Owned by the stream: `_finish` cancels it.
            self._sender = self._spawn(self._settler.run())
            self._inflight.handler = self._source.message_handler()
            self._source.stream_started(self)
            self._adjust_pullers()

    def pause(self) -> None:
        """Deliver nothing new. What handlers have goes on, and leases keep running."""
        self._paused = True
        self._inflight.flowing = False
        self._adjust_pullers()

    def resume(self) -> None:
        self._paused = False
        self._inflight.flowing = True
        self._inflight.drain_soon()
        self._adjust_pullers()

    def set_options(self, options: SubscriberOptions | None = None, **changes: Any) -> None:
        """Replace all options, or some by keyword. Messages in flight are not disturbed."""
        try:
            self._options = replace(options or self._options, **changes)
        except TypeError as error:
            raise InvalidArgumentError(f"Unknown subscriber option: {error}") from None
        self._inflight.configure(self._options)
        self._settler.patience = self._options.ack_deadline or 60.0
        self._settler.backoff = self._options.backoff
        self._adjust_pullers()
        self._wake_pullers()

    def handler_changed(self) -> None:
        """A 'message' listener was added or removed: what waited for one may go."""
        self._inflight.handler = self._source.message_handler()
        self._inflight.drain_soon()

    # Handing out instead of calling a handler.

    @property
    def ack_deadline(self) -> float:
        return self._inflight.ack_deadline

    @property
    def max_messages(self) -> int:
        return self._options.flow_control.max_messages

    @property
    def ended(self) -> bool:
        """Nothing more will come: closing, and nothing waits."""
        return self._closing is not None and not self._inflight.waiting

    def hand_out(self, ahead: int | None, on_news: Callable[[], None] | None) -> None:
        """Fetch no more than `ahead` messages beyond those taken, and say when there is news."""
        self._ahead = ahead
        self._inflight.on_held = on_news
        self._wake_pullers()

    def take_waiting(self) -> Message | None:
        """The next message that waits, if it may be handed over now."""
        message = self._inflight.take_waiting()
        if message is not None:
            self._wake_pullers()
        return message

    def give_back_waiting(self) -> None:
        """Give back what nobody has started."""
        self._given_back += self._inflight.give_back_waiting()

    async def stop(
        self, *, timeout: float | None = None, nack_waiting: bool = False
    ) -> CloseReport:
        """Stop pulling, let what is in flight finish, then emit 'close'.

        Waits until every message is settled or its deadline has passed, at most `timeout`
        seconds; then cancels and nacks. `nack_waiting` gives back at once what no handler has
        started. Safe to call again, also with a shorter timeout; cancelling the caller does not
        stop the closing. A handler may call it: its own message and task are not waited for.
        """
        return await self.stop_for(asyncio.current_task(), timeout, nack_waiting)

    async def stop_for(
        self, caller: asyncio.Task[Any] | None, timeout: float | None, nack_waiting: bool
    ) -> CloseReport:
        """`stop`, on behalf of a task that waits for it."""
        if timeout is not None:
            close_by = self._clock.monotonic() + max(0.0, timeout)
            self._close_by = min(close_by, self._close_by or close_by)
            self._progress.set()
        if caller is not None and caller in self._inflight.pool.running().values():
            # Called by a handler: waiting for that handler would be waiting for itself.
            self._closers.add(caller)
            self._progress.set()
        self._begin_closing()
        if nack_waiting:
            self.give_back_waiting()
        return await asyncio.shield(cast("asyncio.Task[CloseReport]", self._closing))

    # Pulling.

    def _adjust_pullers(self) -> None:
        wanted = self._options.streaming.max_streams if self.active and not self._paused else 0
        self._pullers = [task for task in self._pullers if not task.done()]
        for task in self._pullers[wanted:]:
            task.cancel()
        del self._pullers[wanted:]
        while len(self._pullers) < wanted:
            # Owned by the stream: cancelled above, and by `_finish`.
            self._pullers.append(self._spawn(self._keep_pulling()))

    async def _keep_pulling(self) -> None:
        broker: Broker | None = None
        while True:
            try:
                if broker is None:
                    broker = await self._source.broker()
                    self._inflight.learn(broker)
                if self._options.message_ordering and not broker.capabilities.ordering:
                    # We keep the order ourselves: one pull at a time, and none before the broker
                    # knows what came back.
                    if asyncio.current_task() not in self._pullers[:1]:
                        return
                    await self._settler.flushed()
                await self._pull(broker)
            except Exception as error:
                if not getattr(error, "retryable", True):
                    self._fail(error)
                    return
                await self._recover(error)

    async def _pull(self, broker: Broker) -> None:
        messages, size = self._grant()
        if not messages:
            self._starved = True
            self._room.clear()
            await self._room.wait()
            return
        window = self._inflight.window
        window.reserve(messages, size)
        try:
            deliveries = await broker.pull(
                self._source.name, max_messages=messages, max_bytes=size, wait=_PULL_WAIT
            )
        finally:
            window.unreserve(messages, size)
            self._wake_pullers()
        self._failures = 0
        if len(deliveries) > messages:
            deliveries = self._refuse_excess(deliveries, messages)
        if deliveries:
            self._inflight.accept(deliveries)
        # A broker that never has to wait must not keep others from running.
        await asyncio.sleep(0)

    def _grant(self) -> tuple[int, int]:
        """How many messages and bytes the next pull may ask for; none when the window is full.

        Each stream gets its share, so that all of them can work. A share of bytes is at least
        one message of the largest size: two pulls never overshoot the bound together.
        """
        flow, streams = self._options.flow_control, self._options.streaming.max_streams
        window = self._inflight.window
        if window.full or len(self._settler) > 2 * flow.max_messages:
            return 0, 0
        if flow.allow_excess_messages:
            return flow.max_messages, flow.max_bytes
        share = -(-window.max_messages // streams)
        share_bytes = max(window.max_bytes // streams, MAX_DATA_BYTES)
        messages, size = min(share, window.room), min(share_bytes, window.room_bytes)
        if self._ahead is not None:
            messages = min(messages, self._ahead - self._inflight.waiting - window.reserved)
        return (messages, size) if messages > 0 and size else (0, 0)

    def _refuse_excess(self, deliveries: Sequence[Any], asked: int) -> Sequence[Any]:
        for delivery in deliveries[asked:]:
            self._settler.add(Settlement(delivery.ack_id, Verb.RELEASE))
        self._emit_error(
            FlowControlError(
                f"Flow control: max messages exceeded: the broker sent {len(deliveries)} for "
                f"{asked} asked of subscription {self._source.name!r}; the rest was given back"
            )
        )
        return deliveries[:asked]

    async def _recover(self, error: Exception) -> None:
        """One error and one pause for all pulls that fail together."""
        now = self._clock.monotonic()
        if now >= self._retry_at:
            self._failures += 1
            self._retry_at = now + self._options.backoff.delay(self._failures)
            self._emit_error(error)
        await asyncio.sleep(max(0.0, self._retry_at - now))

    def _fail(self, error: Exception) -> None:
        if self._closing is None:
            self.failure = error
            self._begin_closing()
            self._emit_error(error)

    # Settling and waking.

    async def _settle(self, batch: Sequence[Settlement]) -> Sequence[AckResponse]:
        broker = await self._source.broker()
        return await broker.settle(self._source.name, batch)

    def _changed(self) -> None:
        if self._starved:
            self._wake_pullers()
        if self._closing is not None:
            self._progress.set()

    def _wake_pullers(self) -> None:
        if self._starved:
            self._starved = False
            self._room.set()

    def _emit_error(self, error: BaseException) -> None:
        self._source.emit("error", error)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of the stream's own, in the context it was made in."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    # The end.

    def _begin_closing(self) -> None:
        if self._closing is None:
            # Owned by the stream, which ends with it; `stop` waits for it.
            self._closing = self._spawn(self._finish())

    async def _finish(self) -> CloseReport:
        for task in self._pullers:
            task.cancel()
        inflight = self._inflight
        inflight.expired = []
        if self._paused or (inflight.handler is None and self._ahead is None):
            self.give_back_waiting()
        if inflight.on_held is not None:
            inflight.on_held()
        await self._wait_for_handlers()
        self.give_back_waiting()
        unfinished = [message.id for message in inflight.messages()]
        cancelled = await inflight.abandon(self._closers, _CLOSING_GRACE)
        unsent = await self._settler.drain(_CLOSING_GRACE) if self._sender is not None else 0
        inflight.close()
        self._settler.close()
        self._pullers.clear()
        if self._sender is not None:
            self._sender.cancel()
            self._source.stream_stopped(self)
            self._source.emit("close")
        return CloseReport(
            given_back=tuple(self._given_back),
            expired=tuple(inflight.expired),
            unfinished=tuple(unfinished),
            cancelled=tuple(cancelled),
            unsent=unsent,
        )

    async def _wait_for_handlers(self) -> None:
        """Until nothing is in flight or time is up. A handler that goes on after its message is
        settled or has expired gets one more ack deadline to end."""
        handlers_until: float | None = None
        while True:
            now = self._clock.monotonic()
            leased, running = self._unfinished()
            if not leased and not running:
                return
            limits = [self._close_by] if self._close_by is not None else []
            if not leased:
                handlers_until = handlers_until or now + self.ack_deadline
                limits.append(handlers_until)
            remaining = min(limits) - now if limits else None
            if remaining is not None and remaining <= 0:
                return
            self._progress.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._progress.wait(), remaining)

    def _unfinished(self) -> tuple[int, int]:
        """How many leases and how many handlers there are to wait for."""
        running = self._inflight.pool.running()
        own = [message for message, task in running.items() if task in self._closers]
        leased = len(self._inflight) - sum(message in self._inflight for message in own)
        return leased, len(running) - len(own) + self._inflight.pool.waiting
