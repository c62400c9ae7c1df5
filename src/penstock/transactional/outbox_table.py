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
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    insert,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from penstock.transactional.database import database_time
from penstock.transactional.many_rows import ManyRows

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

# See bundles.py.
bundles = Table(
    "penstock_outbox_bundles",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("topic", Text, nullable=False),
    Column("messages", LargeBinary, nullable=False),
    Column("count", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("claimed_by", Text),
    Column("fence", BigInteger, nullable=False),
    Column("lease_until", Double, nullable=False),
)

PENDING, PUBLISHED, DEAD = "pending", "published", "dead"


def in_state(state: str, columns: Any = table.c) -> ColumnElement[bool]:
    """Written out rather than passed along: else no planner would use the partial indexes."""
    is_it: ColumnElement[bool] = columns.state == literal_column(f"'{state}'")
    return is_it


def keyed(columns: Any) -> ColumnElement[bool]:
    return and_(in_state(PENDING, columns), columns.ordering_key.is_not(None))


def goes_at_once(columns: Any) -> ColumnElement[bool]:
    now: ColumnElement[bool] = columns.next_attempt_at == text("0")
    return now


def is_delayed(columns: Any) -> ColumnElement[bool]:
    later: ColumnElement[bool] = columns.next_attempt_at > text("0")
    return later


is_pending = in_state(PENDING)


def _index(name: str, *columns: Any, only: Any) -> Index:
    """A partial one: the published rows, which are most of the table, cost it nothing."""
    full = f"penstock_outbox_{name}"
    return Index(full, *columns, sqlite_where=only, postgresql_where=only)


# Rows that may go at once and rows that wait, or waited, for their time are looked for apart, so
# that however many wait, they are not walked over by whoever looks for the others.
at_once, delayed = goes_at_once(table.c), is_delayed(table.c)
is_keyless = and_(is_pending, table.c.ordering_key.is_(None))
is_keyed = keyed(table.c)
_index("keyless", table.c.id, only=and_(is_keyless, at_once))
_index("keyless_delayed", table.c.next_attempt_at, only=and_(is_keyless, delayed))
_index("keyed", table.c.id, only=and_(is_keyed, at_once))
_index("keyed_delayed", table.c.next_attempt_at, only=and_(is_keyed, delayed))
_key = (table.c.topic, table.c.ordering_key, table.c.id)
_index("keys", *_key, only=and_(is_keyed, at_once))
_index("delayed_keys", *_key, only=and_(is_keyed, delayed))
# Of a backlog only the few rows that were ever claimed are in here.
was_claimed = and_(is_keyed, table.c.lease_until > text("0"))
_index("claimed", table.c.lease_until, only=was_claimed)
_index("claims", table.c.claimed_by, table.c.fence, only=is_pending)
_index("published", table.c.published_at, only=in_state(PUBLISHED))
_index("dead", table.c.id, only=in_state(DEAD))


GIVEN: Mapping[str, TypeEngine[Any]] = {
    name: Text() if name == "attributes" else table.c[name].type
    for name in ("message_id", "ordering_key", "subject", "data", "attributes", "ttl")
}
_after: ColumnElement[float] = bindparam("after", type_=Double())
_lease: ColumnElement[float] = bindparam("lease", type_=Double())
_HELD = {
    "claimed_by": bindparam("holder", type_=Text()),
    "fence": bindparam("of_claim", type_=BigInteger()),
    "lease_until": case((_lease > 0, database_time() + _lease), else_=literal(0.0)),
}
# 0 rather than the time of now: a clock that is set back must not hold up what was to go at once.
_FRESH = {
    "created_at": func.coalesce(bindparam("since", type_=Double()), database_time()),
    "state": literal(PENDING),
    "attempts": literal(0),
    "next_attempt_at": case((_after > 0, database_time() + _after), else_=literal(0.0)),
    **_HELD,
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
        **_FRESH,
    }
    rows = select(*values.values()).order_by(given["place"])
    filled = postgresql.insert(table).from_select(list(values), rows)
    return filled.on_conflict_do_nothing(index_elements=_KNOWN)


INSERT, INSERT_ARRAYS = ManyRows(_insert()), _insert_arrays()
INSERT_BUNDLES = ManyRows(insert(bundles).values(created_at=database_time(), **_HELD))
