"""The managed publisher: a window of flights, held and refilled, retried, and always ended."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from penstock.broker import Broker
from penstock.clock import NS, Clock
from penstock.config import check_duration, check_kind, check_name, check_whole
from penstock.errors import (
    ClosedError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    PenstockError,
    UnavailableError,
)
from penstock.message import MAX_MESSAGE_ID_BYTES, Draft, Expect, check_text
from penstock.observing.observer import Observer
from penstock.publishing.admission import Admission
from penstock.publishing.calls import Calls
from penstock.publishing.flight import Flight, FlightState
from penstock.publishing.flights import Answers, Flights
from penstock.publishing.listener import Announcer
from penstock.publishing.options import PublisherListener, PublishRetry, check_listener

_log = logging.getLogger("penstock")

# A producer that never has to wait lets its batch leave after this share of the window, so that
# the broker works on one part while the next is made. Every batch has its cost, here and there:
# a message of a window of 512 takes a fifth less of our time in four parts than in eight.
_PARTS = 4
_LARGEST_PART = 256
# On Python 3.11 finding a member in its enum takes longer than most of what is done with it.
_IN_FLIGHT = FlightState.IN_FLIGHT

_Results: TypeAlias = tuple[list[Flight], list[int], Answers]


class Client(Protocol):
    """What a publisher needs of a `PubSub`."""

    @property
    def clock(self) -> Clock: ...
    def broker(self) -> Awaitable[Broker]: ...


class ManagedPublisher:
    """Publishes with a bounded number of messages in flight.

    `publish_async` waits for room, hands the message over and returns its `Flight`. When
    `max_in_flight` messages (or `max_bytes`) wait for their acks a hold is placed: nothing more
    is published until no more than `refill_allowed_at` are left. `max_in_flight - 1` makes that a
    sliding window. Messages with the same ordering key are published one after the other.
    `pause_failed_keys`: when one of them fails for good, those after it are refused until
    `resume_key` is called, so that none overtakes it unnoticed.

    Every flight ends exactly once, at the latest `wait_timeout` seconds after its last attempt
    was published, or a moment later when the process stood still until then: an ack that came
    meanwhile counts. `poll_time` and `hold_pause_time` are accepted for compatibility: everything
    here reacts at once. Use it with `async with`, which drains at the end, or call `start` and
    `drain`; or run `publish_runner` and `flights_runner` in tasks of your own.
    """

    def __init__(
        self,
        pubsub: Client,
        *,
        id_prefix: str | None = None,
        max_in_flight: int = 50,
        refill_allowed_at: int = 0,
        retry: PublishRetry | None = None,
        poll_time: float = 0.1,
        hold_pause_time: float = 0.1,
        wait_timeout: float = 5.0,
        listener: PublisherListener | None = None,
        max_bytes: int = 64 * 2**20,
        pause_failed_keys: bool = False,
    ) -> None:
        check_whole("max_in_flight", max_in_flight, 1)
        check_whole("refill_allowed_at", refill_allowed_at, 0)
        check_whole("max_bytes", max_bytes, 1)
        if refill_allowed_at >= max_in_flight:
            raise InvalidArgumentError(
                f"refill_allowed_at ({refill_allowed_at}) must be below max_in_flight "
                f"({max_in_flight}), or a hold would never be lifted"
            )
        for name, seconds in (("poll_time", poll_time), ("hold_pause_time", hold_pause_time)):
            check_duration(name, seconds, 0, 3600)
        check_duration("wait_timeout", wait_timeout, 0.001, 3600)
        check_kind("retry", retry, PublishRetry | None, "a PublishRetry or None")
        check_listener(listener)
        check_kind("pause_failed_keys", pause_failed_keys, bool, "True or False")
        self.id_prefix = secrets.token_hex(11) if id_prefix is None else _prefix(id_prefix)
        self.max_in_flight = max_in_flight
        self.refill_allowed_at = refill_allowed_at
        self.retry = retry
        self.poll_time = poll_time
        self.hold_pause_time = hold_pause_time
        self.wait_timeout = wait_timeout
        self.pause_failed_keys = pause_failed_keys
        self._pubsub = pubsub
        self._clock = pubsub.clock
        self._observer: Observer | None = getattr(pubsub, "observer", None)
        self._announcer = Announcer(listener)
        self._admission = Admission(max_in_flight, max_bytes, refill_allowed_at)
        self._part = max(1, min(max_in_flight // _PARTS, _LARGEST_PART))
        self._numbers = itertools.count(1)
        self._flights = Flights(
            self._admission, self._announcer, retry, pause_failed_keys=pause_failed_keys
        )
        self._checked_topics: set[str] = set()
        self._outgoing: list[Flight] = []
        self._results: deque[_Results] = deque()
        self._to_send = asyncio.Event()
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._calls = Calls(
            pubsub.broker,
            wait_timeout=wait_timeout,
            on_sent=self._tell_published,
            on_answers=self._report,
        )
        self._runners: list[asyncio.Task[None]] = []
        self._senders = 0
        self._enders = 0
        self._draining = False
        self._stopped = False
        self._lost: BaseException | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.drain()
        except asyncio.CancelledError:
            # Whoever cannot wait any longer leaves nothing running behind.
            await self.stop()
            raise

    @property
    def in_flight(self) -> int:
        """Messages that wait for their acks."""
        return self._admission.window.messages

    @property
    def holding(self) -> bool:
        return self._admission.holding

    # Life.

    def start(self) -> None:
        """Run the publisher on this event loop. No effect when it runs."""
        self._check_open()
        if not self._runners:
            loop = asyncio.get_running_loop()
            # Owned by the publisher: `stop` ends both.
            self._runners = [
                loop.create_task(self.publish_runner()),
                loop.create_task(self.flights_runner()),
            ]
            for runner in self._runners:
                runner.add_done_callback(_seen)

    async def drain(self, timeout: float | None = None) -> tuple[Flight, ...]:
        """Accept nothing more, publish what was accepted, wait for every flight to end, then stop.

        What was handed to `publish_async` before is accepted, also while it waits for room.
        Returns the flights that ended since and were not delivered; after `timeout` seconds
        those that are left end as UNKNOWN and are among them. Idempotent.
        """
        self._collect_failed()
        # Callers that were started before this one get as far as their hand-over.
        await asyncio.sleep(0)
        self._draining = True
        if self._runners or self._senders or self._enders:
            try:
                async with asyncio.timeout(timeout):
                    await self._empty.wait()
            except TimeoutError:
                _log.warning("Drain gave up on %d flights after %s s", len(self._flights), timeout)
        await self.stop()
        return tuple(self._flights.failed or ())

    async def stop(self) -> None:
        """Stop at once. Flights that have not ended end as UNKNOWN."""
        self._end_all(
            lambda flight: UnavailableError(
                f"The publisher was stopped before message {flight.id!r} to topic "
                f"{flight.topic!r} was acknowledged; it may or may not be stored"
            )
        )
        await self._calls.stop()
        tasks = {*self._runners} - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._runners.clear()
        await self._announcer.finish(timeout=5.0)

    def _collect_failed(self) -> None:
        if self._flights.failed is None:
            self._flights.failed = []

    def _end_all(self, why: Callable[[Flight], PenstockError]) -> None:
        """Nothing moves from here on: every flight ends, and nobody waits."""
        self._draining = self._stopped = self._flights.over = True
        self._to_send.set()
        self._news.set()
        self._admission.turn_away(
            ClosedError("The publisher was closed while this message waited for room")
        )
        for flight in self._flights:
            self._finish(flight, FlightState.UNKNOWN, why(flight))
        self._make_room()

    # Publishing.

    async def publish_async(
        self,
        topic: str,
        body: bytes | bytearray | memoryview = b"",
        *,
        headers: Mapping[str, str] | None = None,
        subject: str | None = None,
        ordering_key: str | None = None,
        message_id: str | None = None,
        expect: Expect | None = None,
        ttl: float | None = None,
    ) -> Flight:
        """Publish when there is room; returns once the message is in flight: it leaves with the
        batch of this turn of the loop, and `published` and `publish_time` tell when it has left.

        `expect` makes the broker refuse it when the topic is not as expected. `message_id` is
        the flight's id by default and goes with every attempt.
        """
        flight_id = f"{self.id_prefix}-{next(self._numbers)}"
        if self._observer is not None:
            headers = self._observer.sending(topic, headers)
        draft = Draft.of(
            body,
            headers,
            ordering_key,
            message_id,
            subject,
            expect=expect,
            ttl=ttl,
            own_id=flight_id,
        )
        if topic not in self._checked_topics:
            self._checked_topics.add(check_name("Topic", topic))
        flight = Flight(flight_id, topic, draft)
        if self._draining:
            self._check_open()
        if self._admission.holding:
            self._empty.clear()
            try:
                await self._admission.wait(flight)
            finally:
                self._notice_empty()
        else:
            self._admit(flight)
        if ordering_key and flight.state is FlightState.WAITING:
            await flight.turn()
        elif len(self._outgoing) >= self._part:
            await asyncio.sleep(0)
        return flight

    @property
    def paused_keys(self) -> frozenset[tuple[str, str]]:
        """Topics and ordering keys that are paused; see `pause_failed_keys`."""
        return self._admission.closed_keys

    def resume_key(self, topic: str, ordering_key: str) -> None:
        """Publish messages of this key again. No effect when it is not paused."""
        self._admission.open_key(topic, ordering_key)

    def _check_open(self) -> None:
        if self._lost is not None:
            raise ClosedError(
                f"This publisher has ended, because one of its runners did ({self._lost!r}); "
                "make a new one"
            ) from self._lost
        if self._draining:
            raise ClosedError("This publisher is draining or stopped; make a new one")

    def _admit(self, flight: Flight) -> None:
        self._empty.clear()
        turn = self._flights.enter(flight)
        if turn is not None:
            self._launch(turn)

    def _launch(self, flight: Flight) -> None:
        """It goes out with the next batch, which leaves in this turn of the loop."""
        if not self._outgoing:
            self._to_send.set()
            if not self._senders:
                self._give_up_unless_started()
        self._outgoing.append(flight)
        flight.state = _IN_FLIGHT
        flight.attempts += 1
        if flight._turn is not None:
            flight.take_turn()

    def _give_up_unless_started(self) -> None:
        """What waits for a runner that never comes ends by its deadline like any other."""
        loop = asyncio.get_running_loop()
        loop.call_later(self.wait_timeout, self._give_up_unsent)

    def _give_up_unsent(self) -> None:
        if self._senders or self._stopped:
            return
        unsent, self._outgoing = self._outgoing, []
        for flight in unsent:
            error = DeadlineExceededError(
                f"Message {flight.id!r} to topic {flight.topic!r} was not sent within "
                f"{self.wait_timeout:g} s: the publisher is not running; use `async with`, or call "
                "start()"
            )
            if flight.state is _IN_FLIGHT:
                self._finish(flight, FlightState.TIMED_OUT, error)
        self._make_room()

    # The runners.

    async def publish_runner(self) -> None:
        """Send what is waiting, a batch per topic and turn, until stopped."""
        self._senders += 1
        try:
            with self._never_silently("publish_runner"):
                await self._send_batches()
        finally:
            self._senders -= 1
            self._notice_empty()

    async def flights_runner(self) -> None:
        """End flights: by their answers, or by their deadlines, until stopped."""
        self._enders += 1
        try:
            with self._never_silently("flights_runner"):
                await self._end_flights()
        finally:
            self._enders -= 1
            self._notice_empty()

    @contextmanager
    def _never_silently(self, runner: str) -> Iterator[None]:
        """Without its runners nothing moves any more: a runner that ends takes all flights with
        it, and says so."""
        try:
            yield
        except BaseException as error:
            if not self._stopped:
                self._lost = lost = error
                self._collect_failed()
                if not isinstance(error, asyncio.CancelledError):
                    _log.exception("The publisher's %s ended: all its flights end with it", runner)
                self._end_all(
                    lambda flight: InternalError(
                        f"The publisher's {runner} ended ({lost!r}) before message "
                        f"{flight.id!r} to topic {flight.topic!r} was acknowledged; it may or may "
                        "not be stored"
                    )
                )
            raise

    async def _send_batches(self) -> None:
        while not self._stopped:
            await self._to_send.wait()
            self._to_send.clear()
            # An answer to an earlier attempt may have ended a flight that waited here.
            batch = [f for f in self._outgoing if f.state is _IN_FLIGHT]
            self._outgoing = []
            if self.retry is not None:
                now = self._clock.monotonic()
                for flight in batch:
                    if flight.attempts == 1:
                        flight._began = now
            self._calls.begin(batch)

    async def _end_flights(self) -> None:
        while not self._stopped:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._flights.next_retry()):
                    await self._news.wait()
            self._news.clear()
            self._land_all()
            for flight in self._flights.due(self._clock.monotonic()):
                self._launch(flight)

    def _report(self, flights: list[Flight], attempts: list[int], answers: Answers) -> None:
        self._results.append((flights, attempts, answers))
        if self._enders:
            self._news.set()
        else:
            # Whoever runs one runner alone, or none any more, still gets an end of each flight.
            self._land_all()

    def _tell_published(self, flights: list[Flight]) -> None:
        """They leave now: what leaves together is published at the same time."""
        sent = self._clock.time_ns() / NS
        new: Sequence[Flight] = ()
        if self._announcer.has_listener:
            # The first attempts may have ended before anything could be sent, and so may flights.
            new = [f for f in flights if f.publish_time is None and f.state is _IN_FLIGHT]
        for flight in flights:
            flight.publish_time = sent
        for flight in new:
            self._announcer.tell("published", flight)

    # Endings.

    def _land_all(self) -> None:
        while self._results:
            for flight in self._flights.land(*self._results.popleft(), self._clock.monotonic()):
                self._launch(flight)
            self._make_room()

    def _finish(self, flight: Flight, state: FlightState, error: PenstockError) -> None:
        """End a flight and let the next of its key go; `_make_room` follows."""
        following = self._flights.end(flight, state, error)
        if following is not None:
            self._launch(following)

    def _make_room(self) -> None:
        """Flights have ended: lift the hold, let callers in, notice that all are done."""
        if self._admission.lift_hold():
            self._announcer.tell("resumed")
        while (flight := self._admission.next_waiting()) is not None:
            self._admit(flight)
        self._notice_empty()

    def _notice_empty(self) -> None:
        running = self._senders or self._enders or self._runners
        if not running or not (self._flights or self._admission.has_waiting):
            self._empty.set()


def _prefix(text: str) -> str:
    # Ids are the prefix, a hyphen and a number.
    check_text("id_prefix", text, MAX_MESSAGE_ID_BYTES - 24)
    return text or secrets.token_hex(11)


def _seen(runner: asyncio.Task[None]) -> None:
    """Its failure was told to everybody it concerns."""
    if not runner.cancelled():
        runner.exception()
