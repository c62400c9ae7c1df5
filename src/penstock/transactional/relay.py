"""The relay: publishes what the outbox holds, then marks it.

claim (a transaction) → publish (no transaction) → settle (a transaction)

A crash between any two leaves the rows claimed until the lease ends; then they are published
again, with the same message ids, and the broker drops what it has.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.capabilities import publish
from penstock.client import PubSub
from penstock.config import check_duration, check_whole
from penstock.errors import (
    ClosedError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.lifetime import AsyncClosing
from penstock.message import Draft, PublishFault, Receipt
from penstock.retrying import Failures, Outage, Persistence, always, keep_doing
from penstock.rules.backoff import Backoff
from penstock.transactional.bundles import Bundle
from penstock.transactional.database import Database
from penstock.transactional.held_outbox import HeldOutbox
from penstock.transactional.outbox import Outbox
from penstock.transactional.row_leases import Claim, Claimed, Claims, Outcomes

_log = logging.getLogger("penstock")
_OfTopic = TypeVar("_OfTopic", Claimed, Bundle)

_REASON_LENGTH = 500
# Seconds between looks at what is in hand: where much is committed, what comes meanwhile goes
# together. A round costs a sync of the broker and one of the database. After many messages it is
# longer, since more come.
_APART, _APART_OF_MANY = 0.02, 0.05
_MANY = 16
# Seconds after which there is a look at what others left, or what waited for its time, before what
# is in hand: where much is committed, there is always something in hand.
_TURN_OF_OTHERS = 0.5
# For what is given back at the end, and for a driver to end that was cancelled.
_GRACE = 10.0

# These say something about the broker, not about the row: no attempt is counted.
_OUT_OF_REACH = (UnavailableError, DeadlineExceededError, ClosedError)
# Not retryable for the caller of a publish, but likely to be mended while a row waits.
_MENDABLE = (NotFoundError, PermissionDeniedError, UnauthenticatedError)


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayStatistics:
    """What this relay has done since it was made."""

    published: int = 0
    retried: int = 0
    dead: int = 0
    lost: int = 0
    """Rows whose claim ended before they were marked; another relay has them."""


class Relay(AsyncClosing):
    """Publishes the rows of an outbox. Use it with `async with`; run as many as you like.

    `pubsub`: where to publish; closing the relay leaves it open. `topics`: whose rows it publishes,
    all unless given; relays of several brokers that share an outbox must not take each other's.
    `batch`, `max_bytes`: of one claim. `lease`: seconds a claim lasts unless renewed; how long the
    rows of a relay that died have to wait. `poll`: seconds between looks at the database when
    `wake()` is not called. `retry`: how long a row waits after a failure, and a topic while the
    broker is out of reach. `max_attempts`: a row that failed so often is dead; a broker out of
    reach does not count. `timeout`: seconds a publish may take. `checkpoint` is called with the
    name of each step, `observe` with topic, draft, seconds and error of each publish.
    """

    def __init__(
        self,
        database: Database,
        pubsub: PubSub,
        *,
        outbox: Outbox | None = None,
        topics: Collection[str] | None = None,
        batch: int = 500,
        max_bytes: int = 16 * 2**20,
        lease: float = 30.0,
        poll: float = 1.0,
        retry: Backoff | None = None,
        max_attempts: int = 20,
        timeout: float = 30.0,
        name: str | None = None,
        checkpoint: Callable[[str], None] | None = None,
        observe: Callable[[str, Draft, float, PenstockError | None], None] | None = None,
    ) -> None:
        check_whole("batch", batch, 1)
        check_whole("max_bytes", max_bytes, 1)
        check_whole("max_attempts", max_attempts, 1)
        for what, seconds in (("lease", lease), ("poll", poll), ("timeout", timeout)):
            check_duration(what, seconds, 0.001, 86_400)
        if outbox is not None and outbox.database is not database:
            raise InvalidArgumentError("The relay's outbox is in another database; pass its own")
        if not isinstance(pubsub, PubSub):
            raise InvalidArgumentError(
                f"A relay publishes through a PubSub, not a {type(pubsub).__name__}; for a broker "
                "of your own, PubSub(broker=…)"
            )
        self._outbox = outbox or Outbox(database)
        self._database = database
        self._pubsub = pubsub
        self._batch = batch
        self._max_bytes = max_bytes
        self._lease = lease
        self._poll = poll
        self._retry = retry or Backoff(initial=0.5, maximum=60.0)
        # A relay never gives up: rows do, each for itself.
        self._persistence = Persistence(backoff=self._retry, worth_it=always)
        self._max_attempts = max_attempts
        self._timeout = timeout
        self._checkpoint = checkpoint or _nothing
        self._observe = observe
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        # The name may be shared; what is claimed under it must not be.
        self._claims = Claims(database, f"{self.name}-{secrets.token_hex(6)}", lease, topics)
        self._keyed_first, self._was_keyed = False, True
        self._statistics = RelayStatistics()
        self._own: HeldOutbox | None = None
        self._looked = self._others_at = 0.0
        self._was_own = self._were_many = False
        self._told: list[Callable[[], None]] = []
        self._pauses: dict[str, _Pause] = {}
        self._outage = Outage(_log, f"Relay {self.name} cannot send what waits in the outbox")
        self._wanted = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._publishing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._outbox.create()
        self.start()
        return self

    def start(self) -> None:
        """Begin to publish. The outbox's table must exist; `async with` sees to it."""
        if self._stopping:
            raise ClosedError(f"Relay {self.name!r} is closed; make a new one")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """Something was committed: look now rather than at the next poll."""
        self._wanted.set()

    @contextmanager
    def telling(self, call: Callable[[], None]) -> Iterator[None]:
        """Meanwhile it is called whenever something was published."""
        self._told.append(call)
        try:
            yield
        finally:
            self._told.remove(call)

    def statistics(self) -> RelayStatistics:
        return self._statistics

    async def aclose(self, timeout: float = 10.0) -> None:
        """Stop claiming, let the batch in hand finish within `timeout` seconds, then give back
        what is not published. Idempotent."""
        self._stopping = True
        self._wanted.set()
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=timeout)
        if self._publishing is not None:
            self._publishing.cancel()
        _, stuck = await asyncio.wait({self._task}, timeout=_GRACE)
        if stuck:
            # In a database that does not answer; what it has claimed ends by itself.
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_GRACE)

    async def step(self) -> int:
        """Claim, publish and settle one batch; returns how many messages that was."""
        held = await self._claim_now()
        if held is None:
            return 0
        await self._deal_with(held)
        return len(held.claim)

    def held_outbox(self) -> HeldOutbox:
        """An outbox whose rows are this relay's when they are added. Call `wake` once they are
        committed, or `send_held` where the relay is not running; what it does not send waits for
        its lease to end."""
        if self._own is None:
            self._own = HeldOutbox(self._database, self._claims, self._leaves_alone)
        return self._own

    async def send_held(self) -> int:
        """Publish and settle what was added there and is committed; returns how many messages."""
        held = await self._in_hand()
        if held is None:
            return 0
        await self._deal_with(held)
        return len(held.claim)

    async def _run(self) -> None:
        # On SQLite one claim leads to the next in the transaction that settles it: each is synced,
        # and keeps all other writers waiting. On PostgreSQL each would wait for the other's locks.
        chained = self._database.dialect == "sqlite"
        held: _Held | None = None

        async def look() -> None:
            nonlocal held
            self._wanted.clear()
            taken, held = held or await self._next(), None
            if taken is not None:
                held = await self._deal_with(taken, going_on=chained)
            self._outage.over()
            if held is None and (chained or taken is None) and not self._wanted.is_set():
                await self._rest_until_wanted()

        await keep_doing(
            *(look, Failures(self._persistence)),
            until=lambda: self._stopping,
            on_failure=self._outage.met,
            rest=self._rest,
        )
        for left in (held, await self._in_hand()):
            if left is not None:
                await self._settle(left.claim, Outcomes())

    async def _next(self) -> _Held | None:
        if self._own is None:
            return await self._claim_now()
        loop = asyncio.get_running_loop()
        apart = _APART_OF_MANY if self._were_many else _APART
        await asyncio.sleep(self._looked + apart - loop.time())
        self._looked = loop.time()
        own, others = self._in_hand, self._of_others
        is_their_turn = self._was_own and self._looked >= self._others_at
        for way in (others, own) if is_their_turn else (own, others):
            if (found := await way()) is not None:
                self._was_own = way == own
                self._were_many = len(found.claim) >= _MANY
                return found
        self._were_many = False
        return None

    async def _of_others(self) -> _Held | None:
        """What nobody has in hand."""
        if (await self._claims.look(self._paused())).rows:
            return await self._claim_now()
        self._others_at = self._looked + _TURN_OF_OTHERS
        return None

    async def _in_hand(self) -> _Held | None:
        """What was added for this relay, and is committed."""
        found = None if self._own is None else await self._own.committed()
        return None if found is None else _Held(*found)

    async def _claim_now(self) -> _Held | None:
        async with self._database.transaction() as connection:
            return await self._claim(connection)

    async def _claim(self, connection: AsyncConnection) -> _Held | None:
        began = asyncio.get_running_loop().time()
        claim = await self._claims.claim_in(
            *(connection, self._batch, self._max_bytes),
            keyed_first=self._keyed_first,
            without=self._paused(),
        )
        if claim is None:
            # What there was last is what comes next, most likely.
            self._keyed_first = self._was_keyed
            return None
        self._was_keyed = claim.keyed
        self._keyed_first = not claim.keyed
        return _Held(claim, began)

    def _leaves_alone(self, topic: str) -> bool:
        """Whoever else there is may send what goes there."""
        return self._stopping or topic in self._paused()

    def _paused(self) -> list[str]:
        now = asyncio.get_running_loop().time()
        return [topic for topic, pause in self._pauses.items() if pause.until > now]

    async def _deal_with(self, held: _Held, *, going_on: bool = False) -> _Held | None:
        """Publish and settle what was claimed, and claim what comes next if it is to go on."""
        self._checkpoint("claimed")
        outcomes = Outcomes()
        self._publishing = asyncio.get_running_loop().create_task(
            self._publish_and_renew(held.claim, outcomes, held.began)
        )
        try:
            await asyncio.wait({self._publishing})
        except asyncio.CancelledError:
            self._publishing.cancel()
            await asyncio.wait({self._publishing})
            await self._settle(held.claim, outcomes)
            raise
        failed = not self._publishing.cancelled() and self._publishing.exception()
        following = await self._settle(
            held.claim, outcomes, going_on=going_on and not failed and not self._stopping
        )
        if failed:
            raise failed
        return following

    async def _rest_until_wanted(self) -> None:
        """Until there may be something to claim, because somebody says so or a look finds it."""
        found = await self._claims.look(self._paused())
        while not self._stopping:
            await self._rest(self._poll if found.due is None else min(self._poll, found.due))
            if self._wanted.is_set():
                return
            found = await self._claims.look(self._paused())
            if found.rows:
                return

    async def _rest(self, wait: float) -> None:
        """At most so long: until something is wanted of it."""
        if wait and not self._stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wanted.wait()

    async def _publish_and_renew(self, claim: Claim, outcomes: Outcomes, began: float) -> None:
        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(began + self._lease) as ours:
                    group.create_task(self._keep(claim, ours, done))
                    try:
                        await self._publish(claim, outcomes)
                    finally:
                        done.set()

    async def _keep(self, claim: Claim, ours: asyncio.Timeout, done: asyncio.Event) -> None:
        """Renew the claim until `done`; when it is lost, end what relies on it."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease / 3):
                    await done.wait()
                return
            began = loop.time()
            try:
                kept = await self._claims.renew(claim)
            except PenstockError as error:
                _log.warning("Relay %s could not renew its claim: %s", self.name, error)
                continue
            if done.is_set() or ours.expired():
                return
            ours.reschedule(began + self._lease if kept else began)
            if not kept:
                return

    async def _publish(self, claim: Claim, outcomes: Outcomes) -> None:
        """Fill `outcomes`, topic by topic side by side."""
        publish = self._publish_in_turns if claim.keyed else self._publish_at_once
        async with asyncio.TaskGroup() as group:
            for topic, rows in _by_topic(claim.rows).items():
                group.create_task(publish(topic, rows, outcomes))
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
        self._pause(topic, out_of_reach)
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
        self._pause(topic, out_of_reach)
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
            for draft, answer in zip(drafts, answers, strict=True):
                error = answer.error if isinstance(answer, PublishFault) else None
                self._observe(topic, draft, took, error)
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

    def _pause(self, topic: str, error: PenstockError | None) -> None:
        """Leave a topic alone for a while whose broker is out of reach, or no longer."""
        if error is None:
            if (past := self._pauses.pop(topic, None)) is not None:
                past.outage.over()
            return
        if topic not in self._pauses:
            outage = Outage(_log, f"Topic {topic!r} is out of reach of relay {self.name}")
            self._pauses[topic] = _Pause(Failures(self._persistence), outage)
        pause = self._pauses[topic]
        now = asyncio.get_running_loop().time()
        delay = pause.failures.pause_after(error, now) or 0.0
        pause.until = now + delay
        pause.outage.met(error, delay)

    async def _settle(
        self, claim: Claim, outcomes: Outcomes, *, going_on: bool = False
    ) -> _Held | None:
        self._checkpoint("before-mark")
        following: _Held | None = None
        if going_on and self._own is None:
            # The claim that follows sees all that was committed until now.
            self._wanted.clear()
        async with self._database.transaction() as connection:
            settled = await self._claims.settle(connection, claim, outcomes)
            if going_on:
                following = await self._claim(connection)
            self._checkpoint("marking")
        self._checkpoint("marked")
        lost = len(claim) - settled
        if lost:
            _log.warning(
                "Relay %s lost its claim on %d of %d messages before it could mark them",
                *(self.name, lost, len(claim)),
            )
        before = self._statistics
        self._statistics = replace(
            before,
            published=before.published + len(outcomes.published) + _sent(claim, outcomes),
            retried=before.retried + len(outcomes.again),
            dead=before.dead + len(outcomes.dead),
            lost=before.lost + lost,
        )
        return following


@dataclass(frozen=True, slots=True)
class _Held:
    """A claim, and the loop's time before it was made."""

    claim: Claim
    began: float


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


def _sent(claim: Claim, outcomes: Outcomes) -> int:
    """How many messages of its bundles were stored."""
    return sum(
        len(bundle.drafts) - len(outcomes.left[bundle.name])
        for bundle in claim.bundles
        if bundle.name in outcomes.left
    )


def _reason(error: PenstockError) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _REASON_LENGTH else text[: _REASON_LENGTH - 1] + "…"


def _nothing(_: str) -> None:
    pass
