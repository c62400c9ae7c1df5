"""The dead letters of a topic: read from its log, replayed, discarded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.broker import Broker, Log
from penstock.capabilities import log_of
from penstock.clock import Clock
from penstock.config import check_name
from penstock.dead_letters.letter import ONLY_LETTERS, DeadLetter, read_letter
from penstock.dead_letters.marks import NO_MARKS, ONLY_MARKS, Deed, mark, read_marks
from penstock.dead_letters.replaying import replayed
from penstock.dead_letters.selection import Selection
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
)
from penstock.publishing import Flight, ManagedPublisher, PublishRetry

# Replayed together, then marked together: what a crash in between leaves unmarked is sent again
# under the same ids.
_TOGETHER = 100
_PERSISTENT = PublishRetry(attempts=8, deadline=60.0)

Progress = Callable[["Replay"], None]


class Client(Protocol):
    """What this needs of a `PubSub`."""

    @property
    def clock(self) -> Clock: ...
    def broker(self) -> Awaitable[Broker]: ...


@dataclass(slots=True)
class Replay:
    """How far a replay got. `repeated`: sent before, by a replay that was interrupted. `failed`:
    not sent, by sequence, and why."""

    replayed: int
    repeated: int
    failed: dict[int, PenstockError]


class DeadLetters:
    """Made by `pubsub.dead_letters(topic)`. Needs a broker with a log: what was there before
    anybody subscribed is found, and looking at it changes nothing."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self.topic = check_name("Dead-letter topic", topic)

    async def read(self, selection: Selection | None = None) -> AsyncIterator[DeadLetter]:
        """Those that are meant, in the order they died."""
        selection = selection or Selection()
        matches, left = selection.matcher(), selection.limit
        log = await self._log()
        extent = await log.extent(self.topic)
        marks = log.read(self.topic, extent.first, extent.last, ONLY_MARKS)
        done = read_marks([record async for batch in marks for record in batch])
        first, last = extent.first, extent.last
        if selection.sequences is not None:
            first = max(first, min(selection.sequences, default=last + 1))
            last = min(last, max(selection.sequences, default=first - 1))
        async for batch in log.read(self.topic, first, last, NO_MARKS):
            for record in batch:
                letter = read_letter(self.topic, record, done.get(record.sequence))
                if not matches(letter):
                    continue
                yield letter
                if left is not None:
                    left -= 1
                    if not left:
                        return

    async def get(self, sequence: int) -> DeadLetter:
        """One letter, settled or not."""
        only = Selection(sequences=frozenset([sequence]), settled=True)
        async for letter in self.read(only):
            return letter
        raise NotFoundError(
            f"No dead letter {sequence} in topic {self.topic!r}; it may have expired"
        )

    async def count(self, selection: Selection | None = None) -> int:
        return sum([1 async for _ in self.read(selection)])

    async def check(self, letters: Sequence[DeadLetter] = ()) -> None:
        """`FailedPreconditionError` unless these, or anything else in the topic, say that they were
        given up: in a live topic, named by a slip, all who subscribe would receive the marks.

        `replay` and `discard` ask before they mark anything, unless told with `force` that all of
        it was put there by hand.
        """
        if any(not letter.by_hand for letter in letters):
            return
        log = await self._log()
        extent = await log.extent(self.topic)
        async for _ in log.read(self.topic, extent.first, extent.last, ONLY_LETTERS):
            return
        meant = "" if self.topic.endswith("-dead") else f", such as '{self.topic}-dead'"
        raise FailedPreconditionError(
            f"Nothing in topic {self.topic!r} says that it is a dead letter, and all who subscribe "
            f"to it would receive the mark that is left there: is another topic meant{meant}? If "
            "its letters were put there by hand, say so with --force, or force=True in a program"
        )

    async def replay(
        self,
        selection: Selection,
        *,
        to: str | None = None,
        force: bool = False,
        on_progress: Progress | None = None,
    ) -> Replay:
        """Publish letters again, each to the topic it came from or all to `to`.

        Each gets a new id, derived from the letter, and keeps the one it was first published under
        as `replay-of`. Back in its own topic it is for the subscription that gave it up, if that is
        still there; else for all who read it. It is marked once it is stored; after an interruption
        do it again: what was sent and not marked goes under the same id. Settled letters are left
        out unless meant. `force`: see `check`.
        """
        result = Replay(0, 0, {})
        origins = _Origins(await self._client.broker())
        async with ManagedPublisher(
            self._client, max_in_flight=2 * _TOGETHER, retry=_PERSISTENT
        ) as publisher:
            async for letters in self._together(selection):
                # Without `to`, what was put there by hand goes nowhere and is not marked.
                if to is not None and not force:
                    await self.check(letters)
                flights = await _send(publisher, letters, to, origins, result)
                stored = await _landed(flights, result)
                if stored:
                    await self._mark("replayed", stored)
                if on_progress is not None:
                    on_progress(result)
        return result

    async def discard(
        self,
        selection: Selection,
        *,
        force: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Mark letters as dealt with: they are not listed or replayed any more, and gone when the
        topic's retention ends. Returns how many. `force`: see `check`."""
        count = 0
        async for letters in self._together(selection):
            if not force:
                await self.check(letters)
            await self._mark("discarded", [letter.sequence for letter in letters])
            count += len(letters)
            if on_progress is not None:
                on_progress(count)
        return count

    async def _together(self, selection: Selection) -> AsyncIterator[list[DeadLetter]]:
        letters: list[DeadLetter] = []
        async for letter in self.read(selection):
            letters.append(letter)
            if len(letters) == _TOGETHER:
                yield letters
                letters = []
        if letters:
            yield letters

    async def _mark(self, deed: Deed, sequences: list[int]) -> None:
        broker = await self._client.broker()
        [answer] = await broker.publish(self.topic, [mark(deed, sequences)])
        error = getattr(answer, "error", None)
        if error is not None:
            raise error

    async def _log(self) -> Log:
        return log_of(await self._client.broker(), f"Reading the dead letters of {self.topic!r}")


async def _send(
    publisher: ManagedPublisher,
    letters: list[DeadLetter],
    to: str | None,
    origins: _Origins,
    result: Replay,
) -> dict[int, Flight]:
    flights = {}
    for letter in letters:
        try:
            topic = to or await origins.topic_of(letter)
            draft = replayed(letter, meant_for=await origins.reader_of(letter, topic))
            flights[letter.sequence] = await publisher.publish_async(
                topic,
                draft.data,
                headers=draft.attributes,
                subject=draft.subject,
                ordering_key=draft.ordering_key,
                message_id=draft.message_id,
            )
        except PenstockError as error:
            result.failed[letter.sequence] = error
    return flights


async def _landed(flights: dict[int, Flight], result: Replay) -> list[int]:
    """The sequences of what is stored, once every flight has ended."""
    stored = []
    await asyncio.gather(*(flight.ack for flight in flights.values()), return_exceptions=True)
    for sequence, flight in flights.items():
        if flight.error is not None:
            result.failed[sequence] = flight.error
            continue
        stored.append(sequence)
        if (await flight.ack).duplicate:
            result.repeated += 1
        else:
            result.replayed += 1
    return stored


class _Origins:
    """Where letters came from, also those that say only from which subscription."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics: dict[str, str | None] = {}

    async def topic_of(self, letter: DeadLetter) -> str:
        origin = letter.origin
        if origin.topic is not None:
            return origin.topic
        if origin.subscription is None:
            raise InvalidArgumentError(
                f"Dead letter {letter.sequence} does not say where it came from; say where to"
            )
        topic = await self._read_by(origin.subscription)
        if topic is None:
            raise NotFoundError(
                f"Dead letter {letter.sequence} says only that it came from subscription "
                f"{origin.subscription!r}, which is gone; say where to"
            )
        return topic

    async def reader_of(self, letter: DeadLetter, topic: str) -> str | None:
        """The subscription that gave it up, if it reads `topic`: nobody else is to skip what it
        will never see."""
        subscription = letter.origin.subscription
        if not subscription or letter.origin.topic not in (None, topic):
            return None
        return subscription if await self._read_by(subscription) == topic else None

    async def _read_by(self, subscription: str) -> str | None:
        if subscription not in self._topics:
            try:
                status = await self._broker.admin.describe_subscription(subscription)
                self._topics[subscription] = status.config.topic
            except (NotFoundError, FailedPreconditionError):  # None, or several of its name.
                self._topics[subscription] = None
        return self._topics[subscription]
