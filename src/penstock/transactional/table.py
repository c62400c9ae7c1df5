"""The outbox's table, its indexes, and how rows get into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    and_,
    bindparam,
    cast,
    column,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from penstock.transactional.database import database_time

metadata = MetaData()

table = Table(
    "penstock_outbox",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("topic", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("ordering_key", Text),
    Column("subject", Text),
    Column("data", LargeBinary, nullable=False),
    Column("attributes", JSON, nullable=False),
    Column("ttl", Double),
    Column("created_at", Double, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", Double, nullable=False),
    Column("claimed_by", Text),
    Column("fence", BigInteger, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("last_error", Text),
    Column("published_at", Double),
    Column("sequence", BigInteger),
    UniqueConstraint("topic", "message_id", name="penstock_outbox_message"),
)

PENDING, PUBLISHED, DEAD = "pending", "published", "dead"


def in_state(state: str) -> ColumnElement[bool]:
    """Written out rather than passed along: else no planner would use the partial indexes."""
    return table.c.state == literal_column(f"'{state}'")


is_pending = in_state(PENDING)


def _index(name: str, *columns: Any, only: Any) -> Index:
    """A partial one: the published rows, which are most of the table, cost it nothing."""
    full = f"penstock_outbox_{name}"
    return Index(full, *columns, sqlite_where=only, postgresql_where=only)


is_keyless = and_(is_pending, table.c.ordering_key.is_(None))
is_keyed = and_(is_pending, table.c.ordering_key.is_not(None))
_index("keyless", table.c.id, only=is_keyless)
_index("keyed", table.c.id, only=is_keyed)
# Of a backlog only the few rows that were ever claimed or failed are in these two.
was_claimed = and_(is_keyed, table.c.lease_until > text("0"))
was_delayed = and_(is_keyed, table.c.next_attempt_at > text("0"))
_index("claimed", table.c.lease_until, only=was_claimed)
_index("delayed", table.c.next_attempt_at, only=was_delayed)
_index("claims", table.c.claimed_by, table.c.fence, only=is_pending)
_index("published", table.c.published_at, only=in_state(PUBLISHED))
_index("dead", table.c.id, only=in_state(DEAD))


GIVEN: Mapping[str, TypeEngine[Any]] = {
    name: Text() if name == "attributes" else table.c[name].type
    for name in ("message_id", "ordering_key", "subject", "data", "attributes", "ttl")
}
_FRESH = {
    "created_at": database_time(),
    "state": PENDING,
    "attempts": 0,
    "next_attempt_at": 0.0,
    "fence": 0,
    "lease_until": 0.0,
}
_KNOWN = ["topic", "message_id"]


def _insert() -> Any:
    given = {name: bindparam(name, type_=kind) for name, kind in GIVEN.items()}
    values = {"topic": bindparam("of_topic"), **given, **_FRESH}
    return sqlite.insert(table).values(values).on_conflict_do_nothing(index_elements=_KNOWN)


def _insert_arrays() -> Any:
    """For PostgreSQL, which takes one statement with arrays several times faster than many."""
    arrays = (bindparam(name, type_=ARRAY(kind)) for name, kind in GIVEN.items())
    columns = (column(name, kind) for name, kind in GIVEN.items())
    given = func.unnest(*arrays).table_valued(*columns, with_ordinality="place").render_derived().c
    values: dict[str, Any] = {
        "topic": bindparam("of_topic", type_=Text()),
        **{name: given[name] for name in GIVEN},
        "attributes": cast(given["attributes"], JSON),
        **{
            name: value if name == "created_at" else literal(value)
            for name, value in _FRESH.items()
        },
    }
    rows = select(*values.values()).order_by(given["place"])
    insert = postgresql.insert(table).from_select(list(values), rows)
    return insert.on_conflict_do_nothing(index_elements=_KNOWN)


INSERT, INSERT_ARRAYS = _insert(), _insert_arrays()
