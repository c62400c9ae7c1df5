"""The managed publisher: a window of flights, held and refilled, retried, and always ended."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from penstock.broker import Broker
from penstock.capabilities import publish
from penstock.clock import NS, Clock
from penstock.config import check_duration, check_name, check_whole
from penstock.errors import (
    ClosedError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    PenstockError,
    UnavailableError,
)
from penstock.message import Draft, Expect, PublishFault, Receipt
from penstock.publishing.flight import Flight, FlightState
from penstock.publishing.listener import Announcer
from penstock.publishing.options import PublisherListener, PublishRetry
from penstock.rules.deadlines import Deadlines
from penstock.rules.lanes import Lanes
from penstock.rules.window import Window

_log = logging.getLogger("penstock")

# A producer that never has to wait lets its batch leave after this share of the window, so that
# the broker works on one part while the next is made.
_PARTS = 8
_LARGEST_PART = 256


_Results: TypeAlias = tuple[list[Flight], list[int], Sequence[Receipt | PublishFault]]


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

    Every flight ends exactly once, at the latest `wait_timeout` seconds after its last attempt
    was published. `poll_time` and `hold_pause_time` are accepted for compatibility: everything
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
        self.id_prefix = id_prefix or secrets.token_hex(11)
        self.max_in_flight = max_in_flight
        self.refill_allowed_at = refill_allowed_at
        self.retry = retry
        self.poll_time = poll_time
        self.hold_pause_time = hold_pause_time
        self.wait_timeout = wait_timeout
        self._pubsub = pubsub
        self._clock = pubsub.clock
        self._announcer = Announcer(listener)
        self._window = Window(max_in_flight, max_bytes)
        self._part = max(1, min(max_in_flight // _PARTS, _LARGEST_PART))
        self._numbers = itertools.count(1)
        self._flights: dict[str, Flight] = {}
        self._lanes: Lanes[Flight] = Lanes()
        self._parked: dict[str, asyncio.Future[None]] = {}
        self._callers: deque[tuple[asyncio.Future[None], Flight]] = deque()
        self._checked_topics: set[str] = set()
        self._retries: Deadlines[str] = Deadlines()
        self._outgoing: list[Flight] = []
        self._leaving = (0.0, 0.0)
        self._results: deque[_Results] = deque()
        self._to_send = asyncio.Event()
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._calls: set[asyncio.Task[None]] = set()
        self._runners: list[asyncio.Task[None]] = []
        self._active = 0
        self._failed: list[Flight] | None = None
        self._holding = False
        self._draining = False
        self._stopped = False

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.drain()

    @property
    def in_flight(self) -> int:
        """Messages that wait for their acks."""
        return self._window.messages

    @property
    def holding(self) -> bool:
        return self._holding

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

    async def drain(self, timeout: float | None = None) -> tuple[Flight, ...]:
        """Accept nothing more, wait for every flight to end, then stop.

        Returns the flights that ended since and were not delivered; after `timeout` seconds
        those that are left end as UNKNOWN and are among them. Idempotent.
        """
        self._draining = True
        if self._failed is None:
            self._failed = []
        self._refuse_callers()
        if self._runners or self._active:
            try:
                await asyncio.wait_for(self._empty.wait(), timeout)
            except TimeoutError:
                _log.warning("Drain gave up on %d flights after %s s", len(self._flights), timeout)
        await self.stop()
        return tuple(self._failed)

    async def stop(self) -> None:
        """Stop at once. Flights that have not ended end as UNKNOWN."""
        self._draining = self._stopped = True
        self._to_send.set()
        self._news.set()
        self._refuse_callers()
        for flight in list(self._flights.values()):
            error = UnavailableError(
                f"The publisher was stopped before message {flight.id!r} to topic "
                f"{flight.topic!r} was acknowledged; it may or may not be stored"
            )
            self._finish(flight, FlightState.UNKNOWN, error)
        self._make_room()
        tasks = {*self._calls, *self._runners} - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._runners.clear()
        await self._announcer.finish(timeout=5.0)

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
        """Publish when there is room; returns once the message is in flight.

        `expect` makes the broker refuse it when the topic is not as expected. `message_id` is
        the flight's id by default and goes with every attempt.
        """
        flight_id = f"{self.id_prefix}-{next(self._numbers)}"
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
        if self._holding:
            await self._wait_for_room(flight)
        else:
            self._admit(flight)
        if ordering_key and flight.state is FlightState.WAITING:
            await self._wait_for_lane(flight)
        elif len(self._outgoing) >= self._part:
            await asyncio.sleep(0)
        return flight

    def _check_open(self) -> None:
        if self._draining:
            raise ClosedError("This publisher is draining or stopped; make a new one")

    async def _wait_for_room(self, flight: Flight) -> None:
        """First come, first served. Cancelled while it waits, the message is not published;
        cancelled after that, its flight goes on."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._callers.append((turn, flight))
        await turn

    async def _wait_for_lane(self, flight: Flight) -> None:
        parked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parked[flight.id] = parked
        try:
            await asyncio.shield(parked)
        finally:
            self._parked.pop(flight.id, None)

    def _admit(self, flight: Flight) -> None:
        window, draft = self._window, flight._draft
        window.messages += 1
        window.bytes += len(draft.data)
        if not self._flights:
            self._empty.clear()
        self._flights[flight.id] = flight
        if not self._holding and window.full:
            self._holding = True
            self._announcer.tell("held")
        key = draft.ordering_key
        if key is None or self._lanes.enter(f"{flight.topic} {key}", flight):
            self._launch(flight)

    def _launch(self, flight: Flight) -> None:
        """It goes out with the next batch, which leaves in this turn of the loop."""
        if not self._outgoing:
            # What leaves together is published at the same time.
            self._to_send.set()
            self._leaving = (self._clock.time_ns() / NS, self._clock.monotonic())
        self._outgoing.append(flight)
        flight.state = FlightState.IN_FLIGHT
        flight.attempts += 1
        flight.publish_time, now = self._leaving
        if flight.attempts == 1:
            flight._began = now
            if self._announcer.has_listener:
                self._announcer.tell("published", flight)
            if self._parked:
                parked = self._parked.get(flight.id)
                if parked is not None and not parked.done():
                    parked.set_result(None)

    def _admit_callers(self) -> None:
        while self._callers and not self._holding:
            turn, flight = self._callers.popleft()
            if not turn.done():
                self._admit(flight)
                turn.set_result(None)

    def _refuse_callers(self) -> None:
        while self._callers:
            turn, _ = self._callers.popleft()
            if not turn.done():
                turn.set_exception(
                    ClosedError("The publisher was closed while this message waited for room")
                )

    # The runners.

    async def publish_runner(self) -> None:
        """Send what is waiting, a batch per topic and turn, until stopped."""
        self._active += 1
        try:
            await self._send_batches()
        finally:
            self._runner_ended()

    async def _send_batches(self) -> None:
        while not self._stopped:
            await self._to_send.wait()
            self._to_send.clear()
            # An answer to an earlier attempt may have ended a flight that waited here.
            batch = [f for f in self._outgoing if f.state is FlightState.IN_FLIGHT]
            self._outgoing = []
            for topic, flights in _by_topic(batch).items():
                # Owned by the publisher: `stop` cancels it.
                call = asyncio.get_running_loop().create_task(self._call(topic, flights))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def flights_runner(self) -> None:
        """End flights: by their answers, or by their deadlines, until stopped."""
        self._active += 1
        try:
            await self._end_flights()
        finally:
            self._runner_ended()

    def _runner_ended(self) -> None:
        """Without its runners nothing moves any more: whoever drains must not wait for it."""
        self._active -= 1
        if not self._active:
            self._empty.set()

    async def _end_flights(self) -> None:
        while not self._stopped:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._retries.next()):
                    await self._news.wait()
            self._news.clear()
            while self._results:
                self._land(*self._results.popleft())
                self._make_room()
            for flight_id in self._retries.pop_due(self._clock.monotonic()):
                self._launch(self._flights[flight_id])

    async def _call(self, topic: str, flights: list[Flight]) -> None:
        """Publish a batch; report its answers, and before that its deadline if it passes."""
        attempts = [flight.attempts for flight in flights]
        loop = asyncio.get_running_loop()
        late = loop.call_later(self.wait_timeout, self._report_late, topic, flights, attempts)
        try:
            answers = await self._answers(topic, [flight._draft for flight in flights])
        finally:
            late.cancel()
        self._results.append((flights, attempts, answers))
        self._news.set()

    def _report_late(self, topic: str, flights: list[Flight], attempts: list[int]) -> None:
        error = DeadlineExceededError(
            f"Not acknowledged by topic {topic!r} within {self.wait_timeout:g} s; the message may "
            "or may not be stored"
        )
        self._results.append((flights, attempts, [PublishFault(error)] * len(flights)))
        self._news.set()

    async def _answers(self, topic: str, drafts: list[Draft]) -> Sequence[Receipt | PublishFault]:
        """One answer each, whatever happens."""
        try:
            broker = await self._pubsub.broker()
            answers = await publish(broker, topic, drafts)
            if len(answers) != len(drafts):
                raise InternalError(f"The broker answered {len(answers)} of {len(drafts)} drafts")
        except PenstockError as error:
            return [PublishFault(error)] * len(drafts)
        except Exception as error:
            fault = InternalError(f"Publishing to topic {topic!r} failed: {error!r}")
            fault.__cause__ = error
            return [PublishFault(fault)] * len(drafts)
        return answers

    # Endings.

    def _land(
        self,
        flights: list[Flight],
        attempts: list[int],
        answers: Sequence[Receipt | PublishFault],
    ) -> None:
        """End what was answered. Most flights are stored at the first attempt, have no key and
        nobody listening: for them this does all that `_finish` would, without the steps."""
        plain = not self._announcer.has_listener
        known, landed, size = self._flights, 0, 0
        for flight, attempt, answer in zip(flights, attempts, answers, strict=True):
            if flight.state is not FlightState.IN_FLIGHT:
                continue
            if not isinstance(answer, Receipt):
                self._refused(flight, attempt, answer)
                continue
            state = FlightState.DUPLICATE if answer.duplicate else FlightState.ACKED
            draft = flight._draft
            if plain and flight.attempts == 1 and draft.ordering_key is None:
                del known[flight.id]
                flight.state = state
                flight._result = answer
                if flight._ack is not None:
                    flight._settle_ack()
                landed += 1
                size += len(draft.data)
            else:
                self._finish(flight, state, answer)
        self._window.release(landed, size)

    def _refused(self, flight: Flight, attempt: int, fault: PublishFault) -> None:
        if attempt != flight.attempts:
            return  # An attempt that was given up failed after all; a later one decides.
        error = fault.error
        if not self._try_again(flight, error):
            if isinstance(error, DeadlineExceededError):
                state = FlightState.TIMED_OUT
            else:
                state = FlightState.UNKNOWN if error.retryable else FlightState.REJECTED
            self._finish(flight, state, error)

    def _try_again(self, flight: Flight, error: PenstockError) -> bool:
        if self.retry is None or self._stopped:
            return False
        now = self._clock.monotonic()
        delay = self.retry.delay(flight.attempts, now - flight._began, error)
        if delay is None:
            return False
        self._retries.add(now + delay, [flight.id])
        return True

    def _finish(self, flight: Flight, state: FlightState, result: Receipt | PenstockError) -> None:
        """End a flight; `_make_room` follows."""
        del self._flights[flight.id]
        self._retries.discard(flight.id)
        flight.finish(state, result)
        parked = self._parked.get(flight.id)
        if parked is not None and not parked.done():
            parked.set_result(None)
        if type(result) is not Receipt:
            self._tell_failed(flight)
        elif self._announcer.has_listener:
            self._announcer.tell("acked", flight)
        draft = flight._draft
        self._window.release(1, len(draft.data))
        key = draft.ordering_key
        if key is not None:
            following = self._lanes.leave(f"{flight.topic} {key}")
            if following is not None and not self._stopped:
                self._launch(following)

    def _make_room(self) -> None:
        """Flights have ended: lift the hold, let callers in, notice that all are done."""
        window = self._window
        if self._holding and window.messages <= self.refill_allowed_at and not window.full:
            self._holding = False
            self._announcer.tell("resumed")
        self._admit_callers()
        if not self._flights:
            self._empty.set()

    def _tell_failed(self, flight: Flight) -> None:
        if self._failed is not None:
            self._failed.append(flight)
        if flight.state is FlightState.TIMED_OUT:
            self._announcer.tell("timeout", flight)
        else:
            self._announcer.tell("completed_exceptionally", flight)
        if flight._ack is None and not self._announcer.has_listener and self._failed is None:
            _log.warning("%r: %s", flight, flight.error)


def _by_topic(flights: list[Flight]) -> dict[str, list[Flight]]:
    topics = dict.fromkeys([flight.topic for flight in flights])
    if len(topics) == 1:
        return dict.fromkeys(topics, flights)
    batches: dict[str, list[Flight]] = {topic: [] for topic in topics}
    for flight in flights:
        batches[flight.topic].append(flight)
    return batches
