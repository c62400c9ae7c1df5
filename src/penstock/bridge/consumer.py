"""A consumer: takes this app's events as fast as its handler can, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import signal
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from penstock.bridge.envelope import Event
from penstock.bridge.handlers import EventHandler
from penstock.bridge.outcomes import Classifier, classify
from penstock.bridge.processing import Arrived, Checkpoint, InboxUnavailable, Processor
from penstock.bridge.settings import BridgeSettings
from penstock.client import PubSub
from penstock.config import check_duration, check_whole
from penstock.consuming.declaration import Middleware
from penstock.consuming.middleware.chain import check_middleware
from penstock.errors import ClosedError, FailedPreconditionError, PenstockError
from penstock.message import Message
from penstock.retrying import Failures, Persistence, always, keep_doing
from penstock.rules.backoff import Backoff
from penstock.rules.window import FlowControl
from penstock.subscribing import CloseReport, LeaseExtension, Streaming, Subscription

_log = logging.getLogger("penstock.bridge")
# Events that are processed in one transaction should not take longer together than this: it is how
# long others may have to wait for what they have locked, and what is done again after a crash.
_TOGETHER = 0.05
_LONGEST_HANDLER = 86_400.0
# For a handler to end that was cancelled.
_GRACE = 10.0
_PATIENCE = Persistence(backoff=Backoff(initial=0.1, maximum=10.0))
_FOR_EVER = Persistence(backoff=Backoff(initial=0.1, maximum=10.0), worth_it=always)
_IDLE = Backoff(initial=0.05, maximum=1.0)

MakeProcessor = Callable[[EventHandler, "list[Middleware]", Classifier, Checkpoint], Processor]


class Consumer:
    """Made by `bridge.consumer(handler)`.

    `batch_size`: events in hand at most; those that wait together may share a transaction.
    `concurrency`: events at a time; those of one resource go one after the other. 1, the default:
    all of them do. `classifier`: says of an error whether it may pass. `drain_timeout`: seconds
    for what is in hand when it is told to stop.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        handler: Callable[..., Any],
        *,
        pubsub: Callable[[], Awaitable[PubSub]],
        processor: MakeProcessor,
        batch_size: int = 25,
        concurrency: int = 1,
        classifier: Classifier = classify,
        drain_timeout: float = 30.0,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        check_whole("batch_size", batch_size, 1)
        check_whole("concurrency", concurrency, 1)
        check_duration("drain_timeout", drain_timeout, 0, 3600)
        self._settings = settings
        self._handler = EventHandler(handler)
        self._pubsub = pubsub
        self._make_processor = processor
        self._batch_size = batch_size
        self._concurrency = concurrency
        self._classifier = classifier
        self._drain_timeout = drain_timeout
        self._checkpoint = checkpoint or _nothing
        self._middleware: list[Middleware] = []
        self._lanes: list[_Lane] = []
        self._subscription: Subscription | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[CloseReport] | None = None
        self._stopping = False
        self.receiving = asyncio.Event()
        """Set while it receives."""

    def use(self, *middleware: Middleware) -> None:
        """Put middleware around the handler, the first outermost: `async def (call, next)`."""
        if self._receiving is not None:
            raise FailedPreconditionError("A consumer that runs gets no more middleware")
        for one in middleware:
            check_middleware(one)
        self._middleware += middleware

    # Life.

    @property
    def running(self) -> bool:
        return self._receiving is not None and not self._stopping

    @property
    def stopped(self) -> bool:
        """It was told to stop."""
        return self._stopping

    @property
    def failed(self) -> bool:
        """It ended without being told to."""
        if self._receiving is None or self._stopping:
            return False
        return self._receiving.done() or any(lane.task.done() for lane in self._lanes)

    async def run(self) -> CloseReport:
        """Process events until SIGINT or SIGTERM, then finish what is in hand; a second signal, or
        to cancel this, ends it at once. Raises what keeps it from receiving for good."""
        told = asyncio.Event()
        hurry = asyncio.Event()

        def on_signal() -> None:
            (hurry if told.is_set() else told).set()

        with _signals(on_signal):
            await self.start()
            try:
                failure = await self._failure_before(told)
                report = await self._stop_unless(hurry)
            except asyncio.CancelledError:
                # Whoever cancels it means all of it, and at once.
                await self.stop(0)
                raise
            if failure is not None:
                raise failure
            return report

    async def _failure_before(self, told: asyncio.Event) -> BaseException | None:
        """Until it is told to end: None. What it ended with by itself."""
        assert self._receiving is not None  # noqa: S101
        waiting = asyncio.ensure_future(told.wait())
        try:
            await asyncio.wait({waiting, self._receiving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        failed = self._receiving.done() and not self._receiving.cancelled()
        return self._receiving.exception() if failed else None

    async def start(self) -> None:
        """Begin to receive. No effect while it does; a stopped one cannot start again."""
        if self._stopping:
            raise ClosedError("This consumer was stopped; make a new one")
        if self._receiving is None:
            self._receiving = asyncio.get_running_loop().create_task(self._receive())

    async def stop(self, timeout: float | None = None) -> CloseReport:
        """Take nothing more, finish what was begun, give back the rest; says what was left.

        After `timeout` seconds (`drain_timeout`, unless given) handlers are cancelled and their
        events come back. Idempotent, and safe before it was started.
        """
        self._stopping = True
        self.receiving.clear()
        timeout = self._drain_timeout if timeout is None else timeout
        if self._subscription is not None and self._subscription.is_open:
            self._subscription.pause()
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait({self._receiving})
        for lane in self._lanes:
            lane.stop()
        running = {lane.task for lane in self._lanes}
        if asyncio.current_task() in running:
            # A handler calls this: waiting for it would be waiting for ourselves, and its event is
            # answered only after it. Owned here; a later call waits for the same.
            self._ending = asyncio.ensure_future(self._end(running, timeout))
            return CloseReport()
        return await self._end(running, timeout)

    async def _end(self, running: set[asyncio.Task[None]], timeout: float) -> CloseReport:
        if running:
            await asyncio.wait(running, timeout=timeout)
            for task in running:
                task.cancel()
            _, stubborn = await asyncio.wait(running, timeout=_GRACE)
            if stubborn:
                _log.error("%d handlers go on although they were cancelled", len(stubborn))
        self._handler.close()
        if self._subscription is None:
            return CloseReport()
        return await self._subscription.close(timeout=0, nack_waiting=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _stop_unless(self, hurry: asyncio.Event) -> CloseReport:
        stopping = asyncio.ensure_future(self.stop())
        hurrying = asyncio.ensure_future(hurry.wait())
        try:
            await asyncio.wait({stopping, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurrying.cancel()
        for lane in self._lanes:
            if hurry.is_set():
                lane.task.cancel()
        return await stopping

    # Receiving.

    async def _receive(self) -> None:
        """Over one connection after the other, if they are made anew."""

        async def receive() -> None:
            pubsub = await self._pubsub()
            self._make_lanes()
            await self._receive_from(pubsub)

        def tell(error: Exception, pause: float) -> None:
            _log.warning("Not receiving; trying again in %.1f s: %s", pause, error)

        try:
            await keep_doing(
                receive, Failures(_PATIENCE), until=lambda: self._stopping, on_failure=tell
            )
        except PenstockError as error:
            durable = self._settings.names.durable
            _log.error("Consumer %s ended and receives no more: %s", durable, error)
            raise

    def _make_lanes(self) -> None:
        """Not before the bridge is started: what is processed may need its database."""
        if self._lanes:
            return
        processor = self._make_processor(
            self._handler, self._middleware, self._classifier, self._checkpoint
        )
        self._read = processor.read
        most = -(-self._batch_size // self._concurrency)
        self._lanes = [_Lane(processor, most) for _ in range(self._concurrency)]

    async def _receive_from(self, pubsub: PubSub) -> None:
        closed = asyncio.Event()
        settings = self._settings
        subscription = pubsub.subscription(
            settings.names.durable,
            topic=settings.names.stream_name,
            ack_deadline=settings.ack_wait,
            flow_control=FlowControl(max_messages=self._batch_size),
            # One: events are to arrive in the order of their stream.
            streaming=Streaming(max_streams=1),
            lease_extension=LeaseExtension(
                interval=settings.ack_wait / 3, max_total=_LONGEST_HANDLER
            ),
            backoff=_IDLE,
        )
        subscription.on("message", self._dispatch)
        subscription.on("error", _log_error)
        subscription.on("close", closed.set)
        subscription.open()
        self._subscription = subscription
        self.receiving.set()
        try:
            await closed.wait()
        finally:
            self.receiving.clear()
        failure = subscription.stream.failure if subscription.stream is not None else None
        if failure is not None:
            raise failure

    def _dispatch(self, message: Message) -> None:
        arrived = self._read(message)
        lane = 0
        if self._concurrency > 1 and isinstance(arrived, Event):
            key = arrived.ordering_key or arrived.event_id
            lane = zlib.crc32(key.encode()) % self._concurrency
        self._lanes[lane].put(message, arrived)


class _Lane:
    """Events that go one after the other, in groups that share a transaction. A group is as large
    as has been seen to be done in a moment: one, if the handler takes its time."""

    def __init__(self, processor: Processor, most: int) -> None:
        self._processor = processor
        self._most = most
        self._together = 1
        self._survived = False
        self._waiting: deque[tuple[Message, Arrived]] = deque()
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    def put(self, message: Message, arrived: Arrived) -> None:
        self._waiting.append((message, arrived))
        self._news.set()

    def stop(self) -> None:
        """End after the group in hand, and give back what waits."""
        self._stopping.set()
        self._news.set()

    async def _run(self) -> None:
        failures = Failures(_FOR_EVER)
        loop = asyncio.get_running_loop()
        while True:
            while not self._waiting and not self._stopping.is_set():
                self._news.clear()
                await self._news.wait()
            if self._stopping.is_set():
                self._give_back()
                return
            group = self._next_group()
            began = loop.time()
            try:
                await self._processor.process(group)
                self._survived = True
                failures.clear()
            except InboxUnavailable as error:
                pause = failures.pause_after(error, began) or 0.0
                _log.warning("The inbox cannot be used; trying again in %.1f s: %s", pause, error)
                # They stay in hand: to give them back would count as a delivery each time.
                self._waiting.extendleft(one for one in reversed(group) if not one[0]._settled)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stopping.wait()
            except Exception:
                # Ours, and no reason to stop: what was not answered will be delivered again.
                _log.exception("Processing failed in an unexpected way")
                _give_back(message for message, _ in group)
            self._adapt(len(group), loop.time() - began)

    def _next_group(self) -> list[tuple[Message, Arrived]]:
        """What is processed next. Of the events in hand when a process died the first is the one
        that it died of, as those before it were answered: it is given up when that happened too
        often, and the others, which are as often delivered, are tried one by one."""
        message, arrived = self._waiting[0]
        suspected = self._processor.suspected(message, arrived)
        if suspected is not None:
            self._waiting.popleft()
            return [(message, arrived if self._survived else suspected)]
        group: list[tuple[Message, Arrived]] = []
        while len(group) < self._together and self._waiting:
            if self._processor.suspected(*self._waiting[0]) is not None:
                break
            group.append(self._waiting.popleft())
        return group

    def _adapt(self, done: int, took: float) -> None:
        if took > _TOGETHER:
            self._together = max(1, done // 2)
        elif done == self._together and took < _TOGETHER / 2:
            self._together = min(2 * self._together, self._most)

    def _give_back(self) -> None:
        _give_back(message for message, _ in self._waiting)
        self._waiting.clear()


def _give_back(messages: Any) -> None:
    for message in messages:
        with suppress(ClosedError):
            message.nack(0)


def _log_error(error: BaseException) -> None:
    _log.warning("Receiving: %s", error)


class _signals:  # noqa: N801 - reads as what it does
    """Calls a function on SIGINT and SIGTERM, where that can be."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._set: list[signal.Signals] = []

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not in threads other than the main one, and not everywhere.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self._call)
                self._set.append(number)

    def __exit__(self, *_: object) -> None:
        for number in self._set:
            asyncio.get_running_loop().remove_signal_handler(number)


def _nothing(_: str) -> None:
    pass
