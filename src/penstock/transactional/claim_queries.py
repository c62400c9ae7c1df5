"""What a relay asks of the outbox: which rows may be claimed, and whether it is worth a claim.

Made once: to make such a query takes longer than to ask it. Each finds its rows by an index that
has no others, however many wait or were published.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Text,
    bindparam,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    union_all,
)

from penstock.transactional.bundles import has_ended
from penstock.transactional.database import database_time
from penstock.transactional.outbox_table import (
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

c = table.c
# A topic's name has no slash. One text rather than two columns: SQLite would look for NULL in the
# whole list for every row that is not in it.
_key = c.topic + literal_column("'/'") + c.ordering_key

# What was added for a holder and is committed.
HELD_ROWS = (
    select(c.id, c.topic, c.message_id)
    .where(is_pending, c.claimed_by == bindparam("holder"), c.fence == bindparam("of_claim"))
    .order_by(c.id)
)


@cache
def keyless_rows(batch: int, some: bool) -> Any:
    """Rows that nobody has claimed: those that waited and are due, and those that need not wait."""
    now = database_time()
    free = _rows(null(), is_keyless, some).where(c.lease_until <= now)
    free = free.with_for_update(skip_locked=True)
    due = free.where(delayed, c.next_attempt_at <= now).order_by(c.next_attempt_at)
    return _either(due, free.where(at_once).order_by(c.id), batch)


@cache
def keyed_rows(batch: int, some: bool) -> Any:
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
def prospect(some: bool) -> Any:
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
