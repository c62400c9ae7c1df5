"""Who may publish which rows of the outbox: claims that end by themselves.

A claim is a lease on rows, by the database's clock, and a token (`claimed_by`, `fence`) that every
later statement about those rows checks. Whoever lost a claim changes nothing any more.

Of an ordering key one claim exists at a time, and it begins with the key's first pending row. Two
statements could not promise that on PostgreSQL, because each sees what was committed when it
began; so claiming keys excludes claiming and settling keys elsewhere, by a lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, and_, bindparam, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.message import Draft
from penstock.transactional.database import Database, database_time
from penstock.transactional.outbox import DEAD, PENDING, PUBLISHED, is_pending, table

_KEYS_LOCK = 0x70656E73746F636C
# One key goes out a message at a time; a longer run of it would hold up the rest of the claim.
_LONGEST_RUN = 50

c = table.c


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A row in hand."""

    id: int
    topic: str
    attempts: int
    draft: Draft


@dataclass(frozen=True, slots=True)
class Claim:
    """Rows that are ours for a while, in the order of their ids, and its fencing token."""

    fence: int
    keyed: bool
    rows: Sequence[Claimed]


@dataclass(slots=True)
class Outcomes:
    """What became of the rows of a claim, by id. Rows not mentioned are given back."""

    published: dict[int, int] = field(default_factory=dict)
    """The sequence each has in its topic."""
    again: dict[int, tuple[float, str]] = field(default_factory=dict)
    """After how many seconds, and why."""
    dead: dict[int, str] = field(default_factory=dict)
    given_back: dict[int, str] = field(default_factory=dict)
    """Not attempted, or the broker was out of reach: why."""


class Claims:
    """The claims of one relay on one outbox."""

    def __init__(self, database: Database, owner: str, lease: float) -> None:
        self._database = database
        self._owner = owner
        self._lease = lease
        self._fences = count(1)

    async def claim(
        self, batch: int, max_bytes: int, *, keyed_first: bool, without: Collection[str] = ()
    ) -> Claim | None:
        """Up to `batch` rows of `max_bytes` together (or one), of topics not in `without`."""
        async with self._database.transaction() as connection:
            for keyed in (keyed_first, not keyed_first):
                if keyed:
                    await self._database.lock(connection, _KEYS_LOCK)
                query = _free_keyed(batch, without) if keyed else _free_keyless(batch, without)
                free = (await connection.execute(query)).all()
                ids = _chosen(free, max_bytes)
                if ids:
                    return await self._take(connection, ids, keyed)
        return None

    async def renew(self, claim: Claim) -> bool:
        """Ours for a whole lease again; False when it no longer was."""
        change = (
            update(table)
            .where(self._is_ours(claim))
            .values(lease_until=database_time() + self._lease)
        )
        async with self._database.transaction() as connection:
            return (await connection.execute(change)).rowcount > 0

    async def settle(self, connection: AsyncConnection, claim: Claim, outcomes: Outcomes) -> int:
        """Write down what became of the rows and give back the rest. Returns how many of the
        rows were still ours."""
        if claim.keyed:
            await self._database.lock(connection, _KEYS_LOCK, shared=True)
        settled = 0
        ours = and_(c.id == bindparam("row"), self._is_ours(claim))
        done = {"claimed_by": None, "lease_until": 0.0}
        for values, rows in (
            (
                {
                    "state": PUBLISHED,
                    "sequence": bindparam("at"),
                    "published_at": database_time(),
                    "attempts": c.attempts + 1,
                    "last_error": None,
                },
                [{"row": row, "at": at} for row, at in outcomes.published.items()],
            ),
            (
                {
                    "attempts": c.attempts + 1,
                    "next_attempt_at": database_time() + bindparam("delay"),
                    "last_error": bindparam("why"),
                },
                [{"row": row, "delay": d, "why": w} for row, (d, w) in outcomes.again.items()],
            ),
            (
                {"state": DEAD, "attempts": c.attempts + 1, "last_error": bindparam("why")},
                [{"row": row, "why": why} for row, why in outcomes.dead.items()],
            ),
            (
                {"last_error": bindparam("why")},
                [{"row": row, "why": why} for row, why in outcomes.given_back.items()],
            ),
        ):
            if rows:
                change = update(table).where(ours).values({**done, **values})
                settled += (await connection.execute(change, rows)).rowcount
        rest = update(table).where(self._is_ours(claim)).values(done)
        return settled + (await connection.execute(rest)).rowcount

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

    def _is_ours(self, claim: Claim) -> ColumnElement[bool]:
        return and_(is_pending, c.claimed_by == self._owner, c.fence == claim.fence)


def _free_keyless(batch: int, without: Collection[str]) -> Any:
    now = database_time()
    return (
        select(c.id, func.length(c.data), c.topic, c.ordering_key)
        .where(is_pending, c.ordering_key.is_(None), c.topic.not_in(list(without)))
        .where(c.next_attempt_at <= now, c.lease_until <= now)
        .order_by(c.id)
        .limit(batch)
        .with_for_update(skip_locked=True)
    )


def _free_keyed(batch: int, without: Collection[str]) -> Any:
    now = database_time()
    other = table.alias("other").c
    busy = exists().where(
        other.state == PENDING,
        other.topic == c.topic,
        other.ordering_key == c.ordering_key,
        or_(other.lease_until > now, other.next_attempt_at > now),
    )
    return (
        select(c.id, func.length(c.data), c.topic, c.ordering_key)
        .where(is_pending, c.ordering_key.is_not(None), c.topic.not_in(list(without)))
        .where(~busy)
        .order_by(c.id)
        .limit(batch)
    )


def _chosen(free: Sequence[Any], max_bytes: int) -> list[int]:
    """The ids to claim: within the bytes, and no more of one key than its run."""
    ids: list[int] = []
    room = max_bytes
    runs: dict[tuple[str, str], int] = {}
    for row, size, topic, key in free:
        if key is not None:
            runs[topic, key] = run = runs.get((topic, key), 0) + 1
            if run > _LONGEST_RUN:
                continue
        room -= size
        if room < 0 and ids:
            break
        ids.append(row)
    return ids


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
