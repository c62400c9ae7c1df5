"""Who may publish which rows of the outbox: claims that end by themselves.

A claim is a lease on rows, by the database's clock, and a token (`claimed_by`, `fence`) that every
later statement about those rows checks. Whoever lost a claim changes nothing any more.

Of an ordering key one claim exists at a time, and it begins with the key's first pending row; a row
that waits for its time, or waited for it, goes alone once it is the first. Two
statements could not promise that on PostgreSQL, because each sees what was committed when it
began; so claiming keys excludes claiming and settling keys elsewhere, by a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import msgspec
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Double,
    Text,
    bindparam,
    column,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from penstock.message import Draft
from penstock.transactional.bundles import (
    Bundle,
    end_bundles,
    has_ended,
    held_bundles,
    renew_bundles,
    unfold_ended,
)
from penstock.transactional.database import Database, database_time
from penstock.transactional.many_rows import ManyRows
from penstock.transactional.outbox import Holder
from penstock.transactional.table import (
    DEAD,
    PUBLISHED,
    at_once,
    delayed,
    goes_at_once,
    is_delayed,
    is_keyed,
    is_keyless,
    is_pending,
    keyed,
    table,
    was_claimed,
)

_KEYS_LOCK = 0x70656E73746F636C
# One key goes out a message at a time; a longer run of it would hold up the rest of the claim.
_LONGEST_RUN = 50
_LOOKS = 3

c = table.c
# A topic's name has no slash. One text rather than two columns: SQLite would look for NULL in the
# whole list for every row that is not in it.
_key = c.topic + literal_column("'/'") + c.ordering_key


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


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """What happens to rows, from values given for each: their types, and what they become."""

    given: Mapping[str, TypeEngine[Any]]
    values: Callable[[Any], Mapping[str, Any]]


_FREED: Mapping[str, Any] = {"claimed_by": None, "lease_until": 0.0}

_PUBLISHED = _Change(
    {"at": BigInteger()},
    lambda given: {
        "state": PUBLISHED,
        "sequence": given["at"],
        "published_at": database_time(),
        "attempts": c.attempts + 1,
        "last_error": None,
    },
)
_AGAIN = _Change(
    {"delay": Double(), "why": Text()},
    lambda given: {
        "attempts": c.attempts + 1,
        "next_attempt_at": database_time() + given["delay"],
        "last_error": given["why"],
    },
)
_DEAD = _Change(
    {"why": Text()},
    lambda given: {"state": DEAD, "attempts": c.attempts + 1, "last_error": given["why"]},
)
_GIVEN_BACK = _Change({"why": Text()}, lambda given: {"last_error": given["why"]})
_UNTOUCHED = _Change({}, lambda _: {})
_RENEWED = _Change(
    {"lease": Double()},
    lambda given: {"claimed_by": c.claimed_by, "lease_until": database_time() + given["lease"]},
)


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
                ours = (is_pending, c.claimed_by == holder.holder, c.fence == holder.of_claim)
                query = select(c.id, c.topic, c.message_id).where(*ours).order_by(c.id)
                found = [tuple(row) for row in await connection.execute(query)]
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
                query = _keyless(batch, self._topics is not None)
                choice.consider((await connection.execute(query, where)).all())
            if choice.ids:
                return await self._take(connection, list(choice.ids), by_key)
        return None

    async def look(self, without: Collection[str] = ()) -> Prospect:
        """What there is to do, without claiming any of it."""
        query = _prospect(self._topics is not None)
        async with self._database.transaction(reading=True) as connection:
            found = (await connection.execute(query, self._where(without))).one()
        waits = (max(0.0, seconds) for seconds in found[1:] if seconds is not None)
        return Prospect(bool(found[0]), min(waits, default=None))

    async def _choose_keyed(
        self, connection: AsyncConnection, choice: _Choice, batch: int, where: dict[str, list[str]]
    ) -> None:
        """Look past keys with many rows, so that they do not hold up the others."""
        query = _keyed(batch, self._topics is not None)
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
                kept += await self._change(connection, claim, _RENEWED, rows)
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
            (_PUBLISHED, list(outcomes.published.items())),
            (_AGAIN, [(row, *rest) for row, rest in outcomes.again.items()]),
            (_DEAD, list(outcomes.dead.items())),
            (_GIVEN_BACK, list(outcomes.given_back.items())),
            (_UNTOUCHED, [(row.id,) for row in claim.rows if row.id not in mentioned]),
        ):
            if rows:
                settled += await self._change(connection, claim, kind, rows)
        if claim.bundles:
            sent = [(one, outcomes.left.get(one.name, one.drafts)) for one in claim.bundles]
            settled += await end_bundles(connection, sent, self._owner, claim.fence)
        return settled

    async def _change(
        self, connection: AsyncConnection, claim: Claim, kind: _Change, rows: Sequence[Any]
    ) -> int:
        """One UPDATE for rows that each have values of their own."""
        ours = {"owner": self._owner, "of_claim": claim.fence}
        names = ("given_id", *kind.given)
        if self._database.dialect != "postgresql":
            given = [dict(zip(names, row, strict=True)) | ours for row in rows]
            return await _changing(kind).execute(connection, given)
        lists = map(list, zip(*rows, strict=True))
        arrays = dict(zip((f"{name}s" for name in names), lists, strict=True))
        return (await connection.execute(_changing_arrays(kind), arrays | ours)).rowcount

    async def _take(self, connection: AsyncConnection, ids: Sequence[int], keyed: bool) -> Claim:
        fence = next(self._fences)
        change = (
            update(table)
            .where(c.id.in_(ids))
            .values(claimed_by=self._owner, fence=fence, lease_until=database_time() + self._lease)
            .returning(
                c.id,
                c.topic,
                c.attempts,
                c.data,
                c.attributes,
                c.ordering_key,
                c.message_id,
                c.subject,
                c.ttl,
            )
        )
        rows = (await connection.execute(change)).all()
        return Claim(fence, keyed, sorted(map(_claimed, rows), key=lambda row: row.id))

    def _where(self, without: Collection[str]) -> dict[str, list[str]]:
        """Whose rows may be claimed."""
        where = {"without": list(without)}
        return where if self._topics is None else {**where, "topics": self._topics}


# What a claim asks and says is made once: to make it takes longer than to ask it.


@cache
def _changing(kind: _Change) -> ManyRows:
    types = {"given_id": BigInteger(), **kind.given}
    return ManyRows(
        _change(kind, {name: bindparam(name, type_=kept) for name, kept in types.items()})
    )


@cache
def _changing_arrays(kind: _Change) -> Any:
    """Arrays in one statement: many statements cost PostgreSQL several times as much."""
    types = {"given_id": BigInteger(), **kind.given}
    arrays = (bindparam(f"{name}s", type_=ARRAY(kept)) for name, kept in types.items())
    columns = (column(name, kept) for name, kept in types.items())
    return _change(kind, func.unnest(*arrays).table_valued(*columns).render_derived().c)


def _change(kind: _Change, given: Any) -> Any:
    ours = (c.claimed_by == bindparam("owner"), c.fence == bindparam("of_claim"))
    return (
        update(table)
        .where(c.id == given["given_id"], is_pending, *ours)
        .values({**_FREED, **kind.values(given)})
    )


@cache
def _keyless(batch: int, some: bool) -> Any:
    """Rows that nobody has claimed: those that waited and are due, and those that need not wait."""
    now = database_time()
    free = _rows(null(), is_keyless, some).where(c.lease_until <= now)
    free = free.with_for_update(skip_locked=True)
    due = free.where(delayed, c.next_attempt_at <= now).order_by(c.next_attempt_at)
    return _either(due, free.where(at_once).order_by(c.id), batch)


@cache
def _keyed(batch: int, some: bool) -> Any:
    """Rows of keys that nobody has claimed: those before which no row of their key waits, or
    waited; and those that waited, are due and are the first of their key. What follows these is
    free once they are gone: to ask whether all before a row are due would mean to walk over those
    that are not."""
    now = database_time()
    held = select(_key).where(was_claimed, c.lease_until > now).correlate(None)
    free = _rows(_key, is_keyed, some).where(_key.not_in(held), ~_follows(is_delayed))
    due = free.where(delayed, c.next_attempt_at <= now, ~_follows(goes_at_once))
    due = due.order_by(c.next_attempt_at)
    return _either(due, free.where(at_once, _key.not_in(_listed("full"))).order_by(c.id), batch)


@cache
def _prospect(some: bool) -> Any:
    """Whether rows that need not wait, or that waited, may be free; and the seconds until the first
    is due that waits. Of those without a key and those with one, each by an index of its own."""
    now = database_time()
    there, due = [], []
    for kind in (is_keyless, is_keyed):
        free = (kind, c.lease_until <= now, *_among(some))
        there += [exists().where(*free, at_once)]
        there += [exists().where(*free, delayed, c.next_attempt_at <= now)]
        waits = (kind, delayed, c.next_attempt_at > now, *_among(some))
        due += [select(func.min(c.next_attempt_at)).where(*waits).scalar_subquery() - now]
    there += [exists().where(has_ended(_listed("topics") if some else None))]
    return select(or_(*there), *due)


def _rows(key: Any, kind: ColumnElement[bool], some: bool) -> Any:
    size = func.length(c.data).label("size")
    return select(c.id, size, key.label("key")).where(kind, *_among(some))


def _among(some: bool) -> list[ColumnElement[bool]]:
    """Of all topics, or some that are given; but for those that are left alone."""
    others: ColumnElement[bool] = c.topic.not_in(_listed("without"))
    # Not the bare column: rows would be looked for by topic, and most were published long ago.
    topic = c.topic + literal_column("''")
    return [others, topic.in_(_listed("topics"))] if some else [others]


def _listed(name: str) -> Any:
    return bindparam(name, type_=Text(), expanding=True)


def _either(due: Any, free: Any, batch: int) -> Any:
    """Of what waited at most half a batch, so that the rest does not wait for it. In subqueries,
    because parts of a UNION have no limit and no lock of their own."""
    parts = (due.limit((batch + 1) // 2).subquery(), free.limit(batch).subquery())
    both = union_all(*(select(part) for part in parts)).subquery()
    return select(both).order_by(both.c.id)


def _follows(kind: Callable[[Any], ColumnElement[bool]]) -> ColumnElement[bool]:
    """Whether a row of that kind comes earlier in the same key."""
    other = table.alias("earlier").c
    same = (other.topic == c.topic, other.ordering_key == c.ordering_key, other.id < c.id)
    return exists().where(keyed(other), kind(other), *same)


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
