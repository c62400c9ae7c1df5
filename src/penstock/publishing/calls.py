"""Calls to the broker: a batch each, answered whatever happens, or reported late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock.broker import Broker
from penstock.callbacks import leave_later
from penstock.capabilities import publish
from penstock.errors import DeadlineExceededError, InternalError, PenstockError
from penstock.message import PublishFault
from penstock.publishing.flight import Flight
from penstock.publishing.flights import Answers
from penstock.rules.standing_still import time_to_read


class Calls:
    """Publishes flights, those of a topic in one call, several calls side by side.

    `on_sent` is told of flights as they leave, `on_answers` of their answers, one each, and of the
    attempts that were answered. An attempt that takes longer than `wait_timeout` is answered with
    a fault, and once more when its own answer comes.
    """

    def __init__(
        self,
        broker: Callable[[], Awaitable[Broker]],
        *,
        wait_timeout: float,
        on_sent: Callable[[list[Flight]], None],
        on_answers: Callable[[list[Flight], list[int], Answers], None],
    ) -> None:
        self._broker = broker
        self._wait_timeout = wait_timeout
        self._on_sent = on_sent
        self._on_answers = on_answers
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def begin(self, flights: list[Flight]) -> None:
        for topic, batch in _by_topic(flights).items():
            # Owned here: `stop` cancels it.
            task = asyncio.get_running_loop().create_task(self._call(topic, batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel every call; answers that come later are not reported."""
        self._stopped = True
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _call(self, topic: str, flights: list[Flight]) -> None:
        call = _Call(topic, flights)
        loop = asyncio.get_running_loop()
        call.late = loop.call_later(self._wait_timeout, self._look_late, call)
        try:
            answers = await self._answers(call)
        finally:
            call.late.cancel()
        self._on_answers(flights, call.attempts, answers)

    def _look_late(self, call: _Call) -> None:
        loop = asyncio.get_running_loop()
        more = time_to_read(call.late.when(), loop.time())
        if more:
            call.late = loop.call_later(more, self._report_late, call)
        else:
            self._report_late(call)

    def _report_late(self, call: _Call) -> None:
        within = f"topic {call.topic!r} within {self._wait_timeout:g} s"
        error = DeadlineExceededError(
            f"Not acknowledged by {within}; the message may or may not be stored"
            if call.has_left
            else f"Not sent to {within}: its broker is not there, or behind; it may still be sent"
        )
        faults = [PublishFault(error)] * len(call.flights)
        self._on_answers(call.flights, call.attempts, faults)

    def _leave(self, call: _Call, places: Sequence[int]) -> None:
        call.has_left = True
        flights = call.flights
        all_of_them = len(places) == len(flights)
        self._on_sent(flights if all_of_them else [flights[at] for at in places])

    async def _answers(self, call: _Call) -> Answers:
        """One answer each, whatever happens."""
        topic, flights = call.topic, call.flights
        try:
            broker = await self._broker()
            drafts = [flight._draft for flight in flights]
            answers = await publish(broker, topic, drafts, lambda at: self._leave(call, at))
            if len(answers) != len(flights):
                few = InternalError(f"The broker answered {len(answers)} of {len(flights)} drafts")
                return [PublishFault(few)] * len(flights)
        except PenstockError as error:
            return [PublishFault(error) if call.has_left else NeverLeft(error)] * len(flights)
        except BaseException as cause:
            if self._stopped and isinstance(cause, asyncio.CancelledError):
                raise
            leave_later(cause)
            fault = InternalError(f"Publishing to topic {topic!r} failed: {cause!r}")
            fault.__cause__ = cause
            return [PublishFault(fault)] * len(flights)
        return answers


class NeverLeft(PublishFault, frozen=True):
    """Nothing was sent: whatever the error says of others, this is not stored."""

    @property
    def definite(self) -> bool:
        return True


class _Call:
    """Flights of a topic that go together, and the attempts that they make in it."""

    __slots__ = ("attempts", "flights", "has_left", "late", "topic")

    late: asyncio.TimerHandle
    """Rings when nobody waits any longer."""

    def __init__(self, topic: str, flights: list[Flight]) -> None:
        self.topic = topic
        self.flights = flights
        self.attempts = [flight.attempts for flight in flights]
        self.has_left = False
        """Some of it was sent."""


def _by_topic(flights: list[Flight]) -> dict[str, list[Flight]]:
    topics = dict.fromkeys([flight.topic for flight in flights])
    if len(topics) == 1:
        return dict.fromkeys(topics, flights)
    batches: dict[str, list[Flight]] = {topic: [] for topic in topics}
    for flight in flights:
        batches[flight.topic].append(flight)
    return batches
