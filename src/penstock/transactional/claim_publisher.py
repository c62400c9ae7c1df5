"""How a claim is published: topic by topic, and what the broker's answers mean for its messages.

What it is given are rows and bundles in hand, and what it gives are `Outcomes`; it knows neither
the database nor whose turn it is. A topic whose broker is out of reach is left alone for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from penstock.capabilities import publish
from penstock.client import PubSub
from penstock.errors import (
    ClosedError,
    DeadlineExceededError,
    InternalError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.message import Draft, PublishFault, Receipt
from penstock.retrying import Failures, Outage, Persistence, always
from penstock.rules.backoff import Backoff
from penstock.transactional.bundles import Bundle
from penstock.transactional.row_leases import Claim, Claimed, Outcomes

Checkpoint: TypeAlias = Callable[[str], None]
Observe: TypeAlias = Callable[[str, Draft, float, PenstockError | None], None]
_OfTopic = TypeVar("_OfTopic", Claimed, Bundle)

_log = logging.getLogger("penstock")
_REASON_LENGTH = 500
# These say something about the broker, not about the row: no attempt is counted.
_OUT_OF_REACH = (UnavailableError, DeadlineExceededError, ClosedError)
# Not retryable for the caller of a publish, but likely to be mended while a row waits.
_MENDABLE = (NotFoundError, PermissionDeniedError, UnauthenticatedError)


class ClaimPublisher:
    """Publishes claims for the relay called `name`; its options are those of `Relay`."""

    def __init__(
        self,
        pubsub: PubSub,
        name: str,
        *,
        retry: Backoff,
        max_attempts: int,
        timeout: float,
        checkpoint: Checkpoint,
        observe: Observe | None,
    ) -> None:
        self._pubsub = pubsub
        self._retry = retry
        self._max_attempts = max_attempts
        self._timeout = timeout
        self._checkpoint = checkpoint
        self._observe = observe
        self._pauses = TopicPauses(name, retry)
        self._told: list[Callable[[], None]] = []

    @contextmanager
    def telling(self, call: Callable[[], None]) -> Iterator[None]:
        """Meanwhile it is called whenever something was published."""
        self._told.append(call)
        try:
            yield
        finally:
            self._told.remove(call)

    def paused(self) -> list[str]:
        """Topics that are left alone now."""
        return self._pauses.at(asyncio.get_running_loop().time())

    async def publish(self, claim: Claim, outcomes: Outcomes) -> None:
        """Fill `outcomes`, topic by topic side by side. When it is cancelled they say what is known
        by then."""
        send = self._publish_in_turns if claim.keyed else self._publish_at_once
        async with asyncio.TaskGroup() as group:
            for topic, rows in _by_topic(claim.rows).items():
                group.create_task(send(topic, rows, outcomes))
            for topic, bundles in _by_topic(claim.bundles).items():
                group.create_task(self._publish_bundles(topic, bundles, outcomes))

    async def _publish_in_turns(
        self, topic: str, rows: Sequence[Claimed], outcomes: Outcomes
    ) -> None:
        """One row of each key at a time: what comes after a failed one has not been sent."""
        keys: dict[str | None, list[Claimed]] = {}
        for row in reversed(rows):
            keys.setdefault(row.draft.ordering_key, []).append(row)
        while keys:
            turn = [waiting.pop() for waiting in keys.values()]
            await self._publish_at_once(topic, turn, outcomes)
            for row in turn:
                gone = row.id in outcomes.published or row.id in outcomes.dead
                key = row.draft.ordering_key
                if not gone or not keys[key]:
                    del keys[key]

    async def _publish_at_once(
        self, topic: str, rows: Sequence[Claimed], outcomes: Outcomes
    ) -> None:
        answers = await self._observed(topic, [row.draft for row in rows])
        out_of_reach: PenstockError | None = None
        for row, answer in zip(rows, answers, strict=True):
            if isinstance(answer, Receipt):
                outcomes.published[row.id] = answer.sequence
            elif isinstance(answer.error, _OUT_OF_REACH):
                out_of_reach = answer.error
                outcomes.given_back[row.id] = _reason(answer.error)
            else:
                self._failed(row, answer.error, outcomes)
        self._reached(topic, out_of_reach)
        if outcomes.published:
            self._tell_published()

    async def _publish_bundles(
        self, topic: str, bundles: Sequence[Bundle], outcomes: Outcomes
    ) -> None:
        """What is not stored is for rows to try again, each for itself."""
        answers = iter(await self._observed(topic, [one for b in bundles for one in b.drafts]))
        out_of_reach: PenstockError | None = None
        for bundle in bundles:
            left = []
            # Drafts first: when they end, no answer of the next bundle is taken.
            for draft, answer in zip(bundle.drafts, answers, strict=False):
                if isinstance(answer, PublishFault):
                    left.append(draft)
                    if isinstance(answer.error, _OUT_OF_REACH):
                        out_of_reach = answer.error
            outcomes.left[bundle.name] = left
        self._reached(topic, out_of_reach)
        if any(len(outcomes.left[bundle.name]) < len(bundle.drafts) for bundle in bundles):
            self._tell_published()

    def _tell_published(self) -> None:
        for call in self._told:
            call()

    async def _observed(
        self, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        self._checkpoint("publishing")
        began = asyncio.get_running_loop().time()
        answers = await self._answers(topic, drafts)
        self._checkpoint("published")
        if self._observe is not None:
            took = asyncio.get_running_loop().time() - began
            # Whatever it raises, what was published must be marked: else it is published again.
            try:
                for draft, answer in zip(drafts, answers, strict=True):
                    error = answer.error if isinstance(answer, PublishFault) else None
                    self._observe(topic, draft, took, error)
            except Exception:
                _log.exception("The observer of a relay failed at what went to %r", topic)
        return answers

    async def _answers(
        self, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        """The broker's answers; whatever it raises is its answer to every draft."""
        error: PenstockError
        try:
            async with asyncio.timeout(self._timeout):
                answers = await publish(await self._pubsub.broker(), topic, drafts)
            if len(answers) == len(drafts):
                return answers
            # Whose they are nobody can say.
            error = InternalError(
                f"Topic {topic!r}: {len(answers)} answers came for {len(drafts)} messages"
            )
        except TimeoutError:
            error = DeadlineExceededError(
                f"Topic {topic!r} did not answer within {self._timeout:g} s"
            )
        except PenstockError as raised:
            error = raised
        except Exception as raised:
            _log.exception("Publishing to %r failed in an unexpected way", topic)
            error = InternalError(f"{type(raised).__name__}: {raised}")
        return [PublishFault(error)] * len(drafts)

    def _failed(self, row: Claimed, error: PenstockError, outcomes: Outcomes) -> None:
        failures = row.attempts + 1
        hopeful = error.retryable or isinstance(error, _MENDABLE)
        if hopeful and failures < self._max_attempts:
            outcomes.again[row.id] = (self._retry.delay(failures), _reason(error))
            return
        outcomes.dead[row.id] = _reason(error)
        _log.error(
            "Message %s for topic %r is dead after %d attempts: %s",
            *(row.draft.message_id, row.topic, failures, _reason(error)),
        )

    def _reached(self, topic: str, error: PenstockError | None) -> None:
        """Or not, and why."""
        if error is None:
            self._pauses.end(topic)
        else:
            self._pauses.begin(topic, error, asyncio.get_running_loop().time())


class TopicPauses:
    """Topics that a relay leaves alone for a while, longer each time, because their broker is out
    of reach. An outage is told of when it begins and when it is over."""

    def __init__(self, name: str, retry: Backoff) -> None:
        self._name = name
        # A topic is never given up: rows are, each for itself.
        self._persistence = Persistence(backoff=retry, worth_it=always)
        self._pauses: dict[str, _Pause] = {}

    def at(self, now: float) -> list[str]:
        return [topic for topic, pause in self._pauses.items() if pause.until > now]

    def begin(self, topic: str, error: PenstockError, now: float) -> None:
        if topic not in self._pauses:
            outage = Outage(_log, f"Topic {topic!r} is out of reach of relay {self._name}")
            self._pauses[topic] = _Pause(Failures(self._persistence), outage)
        pause = self._pauses[topic]
        delay = pause.failures.pause_after(error, now) or 0.0
        pause.until = now + delay
        pause.outage.met(error, delay)

    def end(self, topic: str) -> None:
        if (past := self._pauses.pop(topic, None)) is not None:
            past.outage.over()


@dataclass(slots=True)
class _Pause:
    failures: Failures
    outage: Outage
    until: float = 0.0


def _by_topic(some: Sequence[_OfTopic]) -> dict[str, list[_OfTopic]]:
    topics: dict[str, list[_OfTopic]] = {}
    for one in some:
        topics.setdefault(one.topic, []).append(one)
    return topics


def _reason(error: PenstockError) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _REASON_LENGTH else text[: _REASON_LENGTH - 1] + "…"
