"""Who may publish which rows of the outbox: claims that end by themselves.

A claim is a lease on rows, by the database's clock, and a token (`claimed_by`, `fence`) that every
later statement about those rows checks. Whoever lost a claim changes nothing any more.

Of an ordering key one claim exists at a time, and it begins with the key's first pending row; a row
that waits for its time, or waited for it, goes alone once it is the first. Two
statements could not promise that on PostgreSQL, because each sees what was committed when it
began; so claiming keys excludes claiming and settling keys elsewhere, by a lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.message import Draft
from penstock.transactional.bundles import (
    Bundle,
    end_bundles,
    held_bundles,
    renew_bundles,
    unfold_ended,
)
from penstock.transactional.claim_queries import HELD_ROWS, keyed_rows, keyless_rows, prospect
from penstock.transactional.database import Database
from penstock.transactional.outbox import Holder
from penstock.transactional.row_changes import (
    AGAIN,
    GIVEN_BACK,
    NOW_DEAD,
    NOW_PUBLISHED,
    RENEWED,
    TAKE,
    UNTOUCHED,
)

_KEYS_LOCK = 0x70656E73746F636C
# One key goes out a message at a time; a longer run of it would hold up the rest of the claim.
_LONGEST_RUN = 50
_LOOKS = 3


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A row in hand."""

    id: int
    topic: str
    attempts: int
    draft: Draft


@dataclass(frozen=True, slots=True)
class Claim:
    """Rows that are ours for a while, in the order of their ids, and its fencing token; and bundles
    that were ours from the beginning."""

    fence: int
    keyed: bool
    rows: Sequence[Claimed]
    bundles: Sequence[Bundle] = ()

    def __len__(self) -> int:
        """How many messages that is."""
        return len(self.rows) + sum(len(bundle.drafts) for bundle in self.bundles)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a look at the outbox found. `rows`: whether some may be free. `due`: seconds until the
    first row that waits for its time is due; None when none waits."""

    rows: bool
    due: float | None


@dataclass(slots=True)
class Outcomes:
    """What became of the rows of a claim, by id, and of its bundles, by name. Those not mentioned
    are given back."""

    published: dict[int, int] = field(default_factory=dict)
    """The sequence each has in its topic."""
    again: dict[int, tuple[float, str]] = field(default_factory=dict)
    """After how many seconds, and why."""
    dead: dict[int, str] = field(default_factory=dict)
    given_back: dict[int, str] = field(default_factory=dict)
    """Not attempted, or the broker was out of reach: why."""
    left: dict[str, Sequence[Draft]] = field(default_factory=dict)
    """Of each bundle that was sent, what was not stored."""

    def mentioned(self) -> set[int]:
        return {*self.published, *self.again, *self.dead, *self.given_back}


class Claims:
    """The claims of one relay on one outbox."""

    def __init__(
        self, database: Database, owner: str, lease: float, topics: Collection[str] | None = None
    ) -> None:
        self._database = database
        self._topics = None if topics is None else list(topics)
        self._owner = owner
        self._lease = lease
        self._fences = count(1)

    def holder(self) -> Holder:
        """For rows that are claimed when they are added."""
        return Holder(self._owner, next(self._fences), self._lease)

    async def held(
        self, holder: Holder, *, rows: bool, bundles: bool
    ) -> tuple[Sequence[tuple[int, str, str]], frozenset[str]]:
        """What was added for it and committed, of what there may be: id, topic and message id of
        rows, and the names of bundles."""
        found: list[tuple[int, str, str]] = []
        names: frozenset[str] = frozenset()
        async with self._database.transaction(reading=True) as connection:
            if rows:
                whose = {"holder": holder.holder, "of_claim": holder.of_claim}
                found = [tuple(row) for row in await connection.execute(HELD_ROWS, whose)]
            if bundles:
                names = await held_bundles(connection, holder)
        return found, names

    async def claim(
        self, batch: int, max_bytes: int, *, keyed_first: bool, without: Collection[str] = ()
    ) -> Claim | None:
        """Up to `batch` rows of `max_bytes` together (or one), of topics not in `without`.

        Of rows that waited for their time at most half a batch, so that nobody waits for them.
        """
        async with self._database.transaction() as connection:
            return await self.claim_in(
                connection, batch, max_bytes, keyed_first=keyed_first, without=without
            )

    async def claim_in(
        self,
        connection: AsyncConnection,
        batch: int,
        max_bytes: int,
        *,
        keyed_first: bool,
        without: Collection[str] = (),
    ) -> Claim | None:
        """`claim`, in the transaction of `connection`."""
        where = self._where(without)
        await unfold_ended(connection, self._topics)
        for by_key in (keyed_first, not keyed_first):
            choice = _Choice(batch, max_bytes)
            if by_key:
                # A claim that a crash of the database takes back is one that has ended.
                await self._database.lock(connection, _KEYS_LOCK, lazily=True)
                await self._choose_keyed(connection, choice, batch, where)
            else:
                query = keyless_rows(batch, self._topics is not None)
                choice.consider((await connection.execute(query, where)).all())
            if choice.ids:
                return await self._take(connection, list(choice.ids), by_key)
        return None

    async def look(self, without: Collection[str] = ()) -> Prospect:
        """What there is to do, without claiming any of it."""
        query = prospect(self._topics is not None)
        async with self._database.transaction(reading=True) as connection:
            found = (await connection.execute(query, self._where(without))).one()
        waits = (max(0.0, seconds) for seconds in found[1:] if seconds is not None)
        return Prospect(bool(found[0]), min(waits, default=None))

    async def _choose_keyed(
        self, connection: AsyncConnection, choice: _Choice, batch: int, where: dict[str, list[str]]
    ) -> None:
        """Look past keys with many rows, so that they do not hold up the others."""
        query = keyed_rows(batch, self._topics is not None)
        for _ in range(_LOOKS):
            found = await connection.execute(query, {**where, "full": list(choice.full)})
            choice.consider(found.all())
            if choice.ended or not choice.full:
                return

    async def renew(self, claim: Claim) -> bool:
        """Ours for a whole lease again; False when it no longer was. Nothing but what is in the
        claim: rows that were added for one holder share its token, and others of them may be in
        nobody's hands any more."""
        kept = 0
        async with self._database.transaction() as connection:
            if claim.rows:
                rows = [(row.id, self._lease) for row in claim.rows]
                kept += await RENEWED.execute(connection, rows, self._owner, claim.fence)
            if claim.bundles:
                ours = (self._owner, claim.fence, self._lease)
                kept += await renew_bundles(connection, claim.bundles, *ours)
        return kept > 0

    async def settle(self, connection: AsyncConnection, claim: Claim, outcomes: Outcomes) -> int:
        """Write down what became of the messages and give back the rest. Returns how many of them
        were still ours."""
        if claim.keyed:
            await self._database.lock(connection, _KEYS_LOCK, shared=True)
        settled, mentioned = 0, outcomes.mentioned()
        for kind, rows in (
            (NOW_PUBLISHED, list(outcomes.published.items())),
            (AGAIN, [(row, *rest) for row, rest in outcomes.again.items()]),
            (NOW_DEAD, list(outcomes.dead.items())),
            (GIVEN_BACK, list(outcomes.given_back.items())),
            (UNTOUCHED, [(row.id,) for row in claim.rows if row.id not in mentioned]),
        ):
            if rows:
                settled += await kind.execute(connection, rows, self._owner, claim.fence)
        if claim.bundles:
            sent = [(one, outcomes.left.get(one.name, one.drafts)) for one in claim.bundles]
            settled += await end_bundles(connection, sent, self._owner, claim.fence)
        return settled

    async def _take(self, connection: AsyncConnection, ids: Sequence[int], keyed: bool) -> Claim:
        fence = next(self._fences)
        ours = {"owner": self._owner, "of_claim": fence, "lease": self._lease}
        rows = (await connection.execute(TAKE, {"ids": ids, **ours})).all()
        return Claim(fence, keyed, sorted(map(_claimed, rows), key=lambda row: row.id))

    def _where(self, without: Collection[str]) -> dict[str, list[str]]:
        """Whose rows may be claimed."""
        where = {"without": list(without)}
        return where if self._topics is None else {**where, "topics": self._topics}


class _Choice:
    """The rows to claim, chosen in order: within the bytes, and of one key no more than a run."""

    def __init__(self, batch: int, max_bytes: int) -> None:
        self.ids: dict[int, None] = {}
        self.full: set[str] = set()
        """Keys that have their run."""
        self.ended = False
        self._batch = batch
        self._room = max_bytes
        self._runs: dict[str, int] = {}

    def consider(self, free: Sequence[Any]) -> None:
        # Fewer than were asked for: there are no more.
        self.ended = len(free) < self._batch
        for row, size, key in free:
            if row in self.ids:
                continue
            if key is not None:
                run = self._runs.get(key, 0)
                if run == _LONGEST_RUN:
                    self.full.add(key)
                    continue
                self._runs[key] = run + 1
            self._room -= size
            if len(self.ids) == self._batch or (self._room < 0 and self.ids):
                self.ended = True
                return
            self.ids[row] = None


def _claimed(row: Any) -> Claimed:
    draft = Draft(
        data=bytes(row.data),
        attributes=row.attributes,
        ordering_key=row.ordering_key,
        message_id=row.message_id,
        subject=row.subject,
        ttl=row.ttl,
    )
    return Claimed(row.id, row.topic, row.attempts, draft)
