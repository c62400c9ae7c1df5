"""What happens to rows: they are taken, and then each becomes what its values say, many in one
statement.

What happens to rows of a claim names them and checks the claim's token; whoever lost it changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Double, Text, bindparam, column, func, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from penstock.transactional.database import database_time
from penstock.transactional.many_rows import ManyRows
from penstock.transactional.outbox_table import DEAD, PUBLISHED, is_pending, table

c = table.c

# Statements are made once: to make one takes longer than to execute it.
TAKE = (
    update(table)
    .where(c.id.in_(bindparam("ids", type_=BigInteger(), expanding=True)))
    .values(
        claimed_by=bindparam("owner", type_=Text()),
        fence=bindparam("of_claim", type_=BigInteger()),
        lease_until=database_time() + bindparam("lease", type_=Double()),
    )
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


@dataclass(frozen=True, slots=True, eq=False)
class RowChange:
    """What happens to rows, from values given for each: their types, and what they become. Unless
    it says otherwise they are nobody's any more."""

    given: Mapping[str, TypeEngine[Any]]
    values: Callable[[Any], Mapping[str, Any]]

    async def execute(
        self, connection: AsyncConnection, rows: Sequence[Any], owner: str, fence: int
    ) -> int:
        """Of rows of that claim, each an id and its values. Returns how many still were."""
        ours = {"owner": owner, "of_claim": fence}
        names = ("given_id", *self.given)
        if connection.dialect.name != "postgresql":
            given = [dict(zip(names, row, strict=True)) | ours for row in rows]
            return await _changing(self).execute(connection, given)
        lists = map(list, zip(*rows, strict=True))
        arrays = dict(zip((f"{name}s" for name in names), lists, strict=True))
        return (await connection.execute(_changing_arrays(self), arrays | ours)).rowcount


_FREED: Mapping[str, Any] = {"claimed_by": None, "lease_until": 0.0}

NOW_PUBLISHED = RowChange(
    {"at": BigInteger()},
    lambda given: {
        "state": PUBLISHED,
        "sequence": given["at"],
        "published_at": database_time(),
        "attempts": c.attempts + 1,
        "last_error": None,
    },
)
AGAIN = RowChange(
    {"delay": Double(), "why": Text()},
    lambda given: {
        "attempts": c.attempts + 1,
        "next_attempt_at": database_time() + given["delay"],
        "last_error": given["why"],
    },
)
NOW_DEAD = RowChange(
    {"why": Text()},
    lambda given: {"state": DEAD, "attempts": c.attempts + 1, "last_error": given["why"]},
)
GIVEN_BACK = RowChange({"why": Text()}, lambda given: {"last_error": given["why"]})
UNTOUCHED = RowChange({}, lambda _: {})
RENEWED = RowChange(
    {"lease": Double()},
    lambda given: {"claimed_by": c.claimed_by, "lease_until": database_time() + given["lease"]},
)


@cache
def _changing(kind: RowChange) -> ManyRows:
    types = {"given_id": BigInteger(), **kind.given}
    return ManyRows(
        _change(kind, {name: bindparam(name, type_=kept) for name, kept in types.items()})
    )


@cache
def _changing_arrays(kind: RowChange) -> Any:
    """Arrays in one statement: many statements cost PostgreSQL several times as much."""
    types = {"given_id": BigInteger(), **kind.given}
    arrays = (bindparam(f"{name}s", type_=ARRAY(kept)) for name, kept in types.items())
    columns = (column(name, kept) for name, kept in types.items())
    return _change(kind, func.unnest(*arrays).table_valued(*columns).render_derived().c)


def _change(kind: RowChange, given: Any) -> Any:
    ours = (c.claimed_by == bindparam("owner"), c.fence == bindparam("of_claim"))
    return (
        update(table)
        .where(c.id == given["given_id"], is_pending, *ours)
        .values({**_FREED, **kind.values(given)})
    )
