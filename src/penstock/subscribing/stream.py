"""Streaming pull: keeps the window filled, survives errors, ends in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextvars import copy_context
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar, Unpack, cast

from penstock.broker import Broker
from penstock.errors import ClosedError, InternalError
from penstock.message import Delivery, Message
from penstock.optional_verbs import leave, pull_to
from penstock.retrying import Failures, Persistence
from penstock.subscribing.closing import CloseReport, Closing
from penstock.subscribing.deliveries import Deliveries
from penstock.subscribing.options import StreamOptions, SubscriberOptions, check_options
from penstock.subscribing.source import Source

T = TypeVar("T")

# An idle pull asks again after this long: often enough to notice a half-open connection.
_PULL_WAIT = 30.0
# A pull that was cancelled has this long to end; what it brings later is given back.
_PULL_ENDS_WITHIN = 5.0


class Subscribed(Protocol):
    """What a stream needs of its subscription: where messages come from, and where to be found
    while it runs."""

    @property
    def source(self) -> Source: ...
    @property
    def running(self) -> set[MessageStream]: ...


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

    def __init__(self, subscription: Subscribed, options: SubscriberOptions | None = None) -> None:
        self.source = subscription.source
        self._running = subscription.running
        self._options = options or SubscriberOptions()
        self._clock = self.source.clock
        self.deliveries = Deliveries(self.source, self._options)
        """What it has in hand."""
        self.failure: Exception | None = None
        """What ended the stream, when it was not asked to end."""
        self._broker: Broker | None = None
        self._context = copy_context()
        self._pullers: list[asyncio.Task[None]] = []
        self._retired: set[asyncio.Task[None]] = set()
        self._failures = Failures(_persistence(self._options))
        self._pulls_resume_at = 0.0
        self._started = self._paused = False
        self._closing = Closing(self.deliveries, self._clock)
        self._ending: asyncio.Future[CloseReport] | None = None
        self._stopped = asyncio.Event()

    @property
    def active(self) -> bool:
        """Started and not stopped; a paused stream is active."""
        return self._started and self._ending is None

    @property
    def ended(self) -> bool:
        """Nothing more will come: closing, and nothing waits."""
        return self._ending is not None and not self.deliveries.waiting

    def holds(self, message: Message) -> bool:
        """The message is ours: neither settled nor expired."""
        return message in self.deliveries

    def statistics(self) -> StreamStatistics:
        window = self.deliveries.window
        return StreamStatistics(
            messages=window.messages,
            bytes=window.bytes,
            waiting=self.deliveries.waiting,
            pulls=len(self._pullers),
            failures=self._failures.count,
        )

    # Life.

    def start(self) -> None:
        """Begin to pull. No effect while running; a stopped stream cannot start again."""
        if self._ending is not None:
            raise ClosedError(
                f"The stream of subscription {self.source.name!r} was stopped; "
                "open the subscription again for a new one"
            )
        if not self._started:
            self._started = True
            self._running.add(self)
            self.listeners_changed()
            self._adjust_pullers()

    def pause(self) -> None:
        """Deliver nothing new. What handlers have goes on, and leases keep running."""
        self._paused = True
        self.deliveries.pause()
        self._adjust_pullers()

    def resume(self) -> None:
        self._paused = False
        self.deliveries.resume()
        self._adjust_pullers()

    def set_options(
        self, options: SubscriberOptions | None = None, **changes: Unpack[StreamOptions]
    ) -> None:
        """Replace all options, or some by keyword. Messages in flight are not disturbed."""
        known = {field.name for field in fields(SubscriberOptions)}
        check_options(f"The stream of subscription {self.source.name!r}", changes, known)
        self._options = replace(options or self._options, **changes)
        self._failures.persistence = _persistence(self._options)
        self.deliveries.configure(self._options)
        self._adjust_pullers()

    def listeners_changed(self) -> None:
        """A 'message' listener was added or removed: what waited for one may go."""
        self.deliveries.deliver_to(self.source.listeners())

    async def stop(
        self, *, timeout: float | None = None, nack_waiting: bool = False
    ) -> CloseReport:
        """Stop pulling, let what is in flight finish, then emit 'close'.

        Waits until every message is settled or its deadline has passed, at most `timeout`
        seconds; then cancels and nacks. `nack_waiting` gives back at once what no handler has
        started. Safe to call again, also with a shorter timeout; cancelling the caller does not
        stop the closing. A handler may call it: its own messages and task are not waited for.
        """
        return await asyncio.shield(self.begin_to_stop(timeout, nack_waiting))

    async def wait_stopped(self) -> None:
        """Wait until it has stopped, whoever stops it; raises what ended it, when nobody did."""
        await self._stopped.wait()
        if self.failure is not None:
            raise self.failure

    def begin_to_stop(
        self, timeout: float | None = None, nack_waiting: bool = False
    ) -> asyncio.Future[CloseReport]:
        """What `stop` does before it waits."""
        if timeout is not None:
            self._closing.hurry(timeout)
        own = self.deliveries.handled_by(asyncio.current_task())
        if own:
            self._closing.spare(own)
        ending = self._begin_to_end()
        if nack_waiting:
            self._closing.give_back_waiting()
        return ending

    def _begin_to_end(self) -> asyncio.Future[CloseReport]:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_future()
            self._spawn_end()
        return self._ending

    def _spawn_end(self) -> None:
        # Owned by the stream, which ends with it; `stop` waits for what it brings.
        self._spawn(self._end()).add_done_callback(self._has_ended)

    def _has_ended(self, end: asyncio.Task[CloseReport]) -> None:
        ending = cast("asyncio.Future[CloseReport]", self._ending)
        if ending.done():
            return  # Somebody has cancelled it, instead of waiting for it.
        if end.cancelled():
            # Before it had begun: it does not end like this later.
            self._closing.hurry(0)
            self._spawn_end()
        elif (failure := end.exception()) is not None:
            ending.set_exception(failure)
        else:
            ending.set_result(end.result())

    async def _end(self) -> CloseReport:
        self._adjust_pullers()
        end = cast("asyncio.Task[CloseReport]", asyncio.current_task())
        report, cancellations = None, 0
        while report is None:
            try:
                if self._retired:
                    await asyncio.wait(self._retired, timeout=_PULL_ENDS_WITHIN)
                await self._leave()
                report = await self._closing.run()
            except asyncio.CancelledError as error:
                if end.cancelling() == cancellations:
                    raise InternalError("Closing was cancelled, and by nobody") from error
                # Whoever cancels all tasks is in a hurry; what is in hand goes back all the same.
                cancellations = end.cancelling()
                self._closing.hurry(0)
        if self._started:
            self._running.discard(self)
            self.source.events.emit("close")
        self._stopped.set()
        return report

    async def _leave(self) -> None:
        """What is given back from here on is for others."""
        name = self.source.name
        others = (stream for stream in self._running if stream.source.name == name)
        if self._broker is None or any(stream.active for stream in others):
            return
        end = cast("asyncio.Task[CloseReport]", asyncio.current_task())
        cancellations = end.cancelling()
        try:
            async with asyncio.timeout(_PULL_ENDS_WITHIN):
                await leave(self._broker, name)
        except TimeoutError:
            return
        except asyncio.CancelledError:
            if end.cancelling() > cancellations:
                raise
            # The broker's own: nobody cancelled us.
        except Exception as error:
            self.source.report(error)

    def _fail(self, error: Exception) -> None:
        if self._ending is None:
            self.failure = error
            self._begin_to_end()
            self.source.report(error)

    # Pulling.

    def _adjust_pullers(self) -> None:
        wanted = self._options.streaming.max_streams if self.active and not self._paused else 0
        self._pullers = [task for task in self._pullers if not task.done()]
        for task in self._pullers[wanted:]:
            task.cancel()
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)
        del self._pullers[wanted:]
        while len(self._pullers) < wanted:
            # Owned by the stream: cancelled above, and awaited by `_end`.
            self._pullers.append(self._spawn(self._keep_pulling()))

    async def _keep_pulling(self) -> None:
        puller = cast("asyncio.Task[None]", asyncio.current_task())
        # A cancellation may be lost on its way here: `wait_for` of Python 3.11 loses some.
        while not puller.cancelling():
            try:
                broker = self._broker
                if broker is None:
                    broker = self._broker = await self.source.broker()
                    self.deliveries.learn(broker)
                one_at_a_time = self._options.message_ordering and not broker.capabilities.ordering
                if one_at_a_time and puller not in self._pullers[:1]:
                    return
                await self._pull(puller, broker, after_sending=one_at_a_time)
            except Exception as error:
                pause = None if puller.cancelling() else self._pause_after(error)
                if pause is None:
                    return
                await asyncio.sleep(pause)

    async def _pull(
        self, puller: asyncio.Task[None], broker: Broker, *, after_sending: bool
    ) -> None:
        deliveries = self.deliveries
        if after_sending:
            # We keep the order ourselves: the broker must know what came back before it is asked.
            await deliveries.sent()
        messages, size = deliveries.room
        if not messages:
            await deliveries.change()
            return
        came = False

        def take(pulled: Sequence[Delivery]) -> None:
            nonlocal came
            came = True
            if self._failures.count:
                self._failures.clear()
            if puller.cancelling():
                deliveries.give_back(pulled)
            else:
                deliveries.accept(pulled, room)

        with deliveries.reserved(messages, size) as room:
            pulled = await pull_to(
                broker,
                take,
                self.source.name,
                max_messages=messages,
                max_bytes=size,
                wait=_PULL_WAIT,
            )
            if came and not pulled:
                return
            take(pulled)
        # A broker that never has to wait must not keep others from running.
        await asyncio.sleep(0)

    def _pause_after(self, error: Exception) -> float | None:
        """One error and one pause for all pulls that fail together; None: the stream ends."""
        if not _may_pass(error):
            self._fail(error)
            return None
        now = self._clock.monotonic()
        if now >= self._pulls_resume_at:
            self._pulls_resume_at = now + (self._failures.pause_after(error, now) or 0.0)
            self.source.report(error)
        return max(0.0, self._pulls_resume_at - now)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of the stream's own, in the context it was made in."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())


def _may_pass(error: Exception) -> bool:
    """What says nothing of itself is a mistake in an adapter, which must not end a stream."""
    return bool(getattr(error, "retryable", True))


def _persistence(options: SubscriberOptions) -> Persistence:
    return Persistence(backoff=options.backoff, worth_it=_may_pass)
