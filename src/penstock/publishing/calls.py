"""Calls to the broker: a batch each, answered whatever happens, or reported late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.broker import Broker
from penstock.callbacks import leave_later
from penstock.capabilities import publish
from penstock.errors import DeadlineExceededError, InternalError, PenstockError
from penstock.message import PublishFault
from penstock.publishing.flight import Flight
from penstock.publishing.flights import Answers


class Calls:
    """Publishes flights, those of a topic in one call, several calls side by side.

    `on_sent` is told of flights as they are handed to the broker, `on_answers` of their answers,
    one each, and of the attempts that were answered. An attempt that takes longer than
    `wait_timeout` is answered with a fault, and once more when its own answer comes.
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
        attempts = [flight.attempts for flight in flights]
        loop = asyncio.get_running_loop()
        late = loop.call_later(self._wait_timeout, self._report_late, topic, flights, attempts)
        try:
            answers = await self._answers(topic, flights)
        finally:
            late.cancel()
        self._on_answers(flights, attempts, answers)

    def _report_late(self, topic: str, flights: list[Flight], attempts: list[int]) -> None:
        error = DeadlineExceededError(
            f"Not acknowledged by topic {topic!r} within {self._wait_timeout:g} s; the message "
            "may or may not be stored"
        )
        self._on_answers(flights, attempts, [PublishFault(error)] * len(flights))

    async def _answers(self, topic: str, flights: list[Flight]) -> Answers:
        """One answer each, whatever happens."""
        try:
            broker = await self._broker()
            self._on_sent(flights)
            answers = await publish(broker, topic, [flight._draft for flight in flights])
            if len(answers) != len(flights):
                raise InternalError(f"The broker answered {len(answers)} of {len(flights)} drafts")
        except PenstockError as error:
            return [PublishFault(error)] * len(flights)
        except BaseException as cause:
            if self._stopped and isinstance(cause, asyncio.CancelledError):
                raise
            leave_later(cause)
            fault = InternalError(f"Publishing to topic {topic!r} failed: {cause!r}")
            fault.__cause__ = cause
            return [PublishFault(fault)] * len(flights)
        return answers


def _by_topic(flights: list[Flight]) -> dict[str, list[Flight]]:
    topics = dict.fromkeys([flight.topic for flight in flights])
    if len(topics) == 1:
        return dict.fromkeys(topics, flights)
    batches: dict[str, list[Flight]] = {topic: [] for topic in topics}
    for flight in flights:
        batches[flight.topic].append(flight)
    return batches
