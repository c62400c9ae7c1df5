"""The relay: round after round it publishes what the outbox holds, and marks it.

claim (a transaction) → publish (no transaction) → settle (a transaction)

Here is when it looks, rests and ends; `row_leases.py` says which rows are its own, and
`claim_publisher.py` what becomes of them.

A crash between any two leaves the rows claimed until the lease ends; then they are published
again, with the same message ids, and the broker drops what it has.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.client import PubSub
from penstock.config import check_duration, check_whole
from penstock.errors import ClosedError, InvalidArgumentError, PenstockError
from penstock.lifetime import AsyncClosing
from penstock.retrying import Failures, Outage, Persistence, always, keep_doing
from penstock.rules.backoff import Backoff
from penstock.transactional.claim_publisher import Checkpoint, ClaimPublisher, Observe
from penstock.transactional.database import Database
from penstock.transactional.held_outbox import HeldOutbox
from penstock.transactional.outbox import Outbox
from penstock.transactional.row_leases import Claim, Claims, Outcomes

_log = logging.getLogger("penstock")

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

Work: TypeAlias = Callable[[AsyncConnection], Awaitable[None]]
"""What is done in a transaction."""


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
        checkpoint: Checkpoint | None = None,
        observe: Observe | None = None,
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
        self._batch = batch
        self._max_bytes = max_bytes
        self._lease = lease
        self._poll = poll
        self._checkpoint = checkpoint or _nothing
        retry = retry or Backoff(initial=0.5, maximum=60.0)
        # A relay never gives up: rows do, each for itself.
        self._persistence = Persistence(backoff=retry, worth_it=always)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        # The name may be shared; what is claimed under it must not be.
        self._claims = Claims(database, f"{self.name}-{secrets.token_hex(6)}", lease, topics)
        self._publisher = ClaimPublisher(
            *(pubsub, self.name),
            retry=retry,
            max_attempts=max_attempts,
            timeout=timeout,
            checkpoint=self._checkpoint,
            observe=observe,
        )
        self._keyed_first, self._was_keyed = False, True
        self._statistics = RelayStatistics()
        self._own: HeldOutbox | None = None
        self._looked = self._others_at = 0.0
        self._was_own = self._were_many = False
        self._outage = Outage(_log, f"Relay {self.name} cannot send what waits in the outbox")
        self._wanted = asyncio.Event()
        self._stopping = False
        self._settle_in: Callable[[Work], Awaitable[None]] = self._alone
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

    def telling(self, call: Callable[[], None]) -> AbstractContextManager[None]:
        """Meanwhile it is called whenever something was published."""
        return self._publisher.telling(call)

    @contextmanager
    def settling_in(self, transactions: Callable[[Work], Awaitable[None]]) -> Iterator[None]:
        """Meanwhile what became of messages is written down in transactions of others, which do
        what they are given, maybe twice, and return when it is committed."""
        self._settle_in = transactions
        try:
            yield
        finally:
            self._settle_in = self._alone

    async def _alone(self, work: Work) -> None:
        async with self._database.transaction() as connection:
            await work(connection)

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
        return await self._deal_with_any(await self._claim_now())

    def held_outbox(self) -> HeldOutbox:
        """An outbox whose rows are this relay's when they are added. Call `wake` once they are
        committed, or `send_held` where the relay is not running; what it does not send waits for
        its lease to end."""
        if self._own is None:
            self._own = HeldOutbox(self._database, self._claims, self._leaves_alone)
        return self._own

    async def send_held(self) -> int:
        """Publish and settle what was added there and is committed; returns how many messages."""
        return await self._deal_with_any(await self._in_hand())

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
        await self._give_back(held)

    async def _give_back(self, held: _Held | None) -> None:
        """What is not published, so that others need not wait until it is nobody's."""
        try:
            for left in (held, await self._in_hand()):
                if left is not None:
                    await self._settle(left.claim, Outcomes())
        except PenstockError as error:
            _log.warning(
                "Relay %s could not give back what it has not sent; others have it in %g s: %s",
                *(self.name, self._lease, error),
            )

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
        if (await self._claims.look(self._publisher.paused())).rows:
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
            without=self._publisher.paused(),
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
        return self._stopping or topic in self._publisher.paused()

    async def _deal_with_any(self, held: _Held | None) -> int:
        """How many messages that was."""
        if held is None:
            return 0
        await self._deal_with(held)
        return len(held.claim)

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
        found = await self._claims.look(self._publisher.paused())
        while not self._stopping:
            await self._rest(self._poll if found.due is None else min(self._poll, found.due))
            if self._wanted.is_set():
                return
            found = await self._claims.look(self._publisher.paused())
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
                        await self._publisher.publish(claim, outcomes)
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

    async def _settle(
        self, claim: Claim, outcomes: Outcomes, *, going_on: bool = False
    ) -> _Held | None:
        self._checkpoint("before-mark")
        following: _Held | None = None
        settled = 0
        if going_on and self._own is None:
            # The claim that follows sees all that was committed until now.
            self._wanted.clear()

        async def mark(connection: AsyncConnection) -> None:
            nonlocal following, settled
            settled = await self._claims.settle(connection, claim, outcomes)
            following = await self._claim(connection) if going_on else None
            self._checkpoint("marking")

        await self._settle_in(mark)
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


def _sent(claim: Claim, outcomes: Outcomes) -> int:
    """How many messages of its bundles were stored."""
    return sum(
        len(bundle.drafts) - len(outcomes.left[bundle.name])
        for bundle in claim.bundles
        if bundle.name in outcomes.left
    )


def _nothing(_: str) -> None:
    pass
