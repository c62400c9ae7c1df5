"""The inbox's table, its indexes, and how rows get into it."""

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
    MetaData,
    Table,
    Text,
    bindparam,
    case,
    cast,
    column,
    func,
    literal,
    literal_column,
    null,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from penstock.transactional.database import database_time

metadata = MetaData()

# Of several consumers in one database each has to see an event once, so the key has both.
inbox = Table(
    "penstock_inbox",
    metadata,
    Column("event_id", Text, primary_key=True),
    Column("consumer", Text, primary_key=True),
    Column("event_type", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("processing_attempts", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("resource_type", Text),
    Column("resource_id", Text),
    Column("subject", Text),
    Column("headers", JSON),
    Column("stream", Text),
    Column("stream_seq", BigInteger),
    Column("deliveries", Integer),
    Column("error_message", Text),
    Column("received_at", Double),
    Column("processed_at", Double),
    Column("failed_at", Double),
)

RECEIVED, PROCESSING, PROCESSED, FAILED = "received", "processing", "processed", "failed"
c = inbox.c


def in_status(status: str) -> ColumnElement[bool]:
    """Written out rather than passed along: else no planner would use the partial index."""
    return c.status == literal_column(f"'{status}'")


is_unprocessed = c.status != literal_column(f"'{PROCESSED}'")

# Partial: the processed rows, which are most of the table, cost it nothing.
Index(
    "penstock_inbox_status",
    c.status,
    sqlite_where=is_unprocessed,
    postgresql_where=is_unprocessed,
)
Index("penstock_inbox_created", c.created_at)
# Not unique: a stream that was deleted and made again counts from 1 again.
Index("penstock_inbox_sequence", c.stream, c.stream_seq)

GIVEN: Mapping[str, TypeEngine[Any]] = {
    name: Text() if name == "headers" else c[name].type
    for name in (
        "event_id",
        "event_type",
        "payload",
        "resource_type",
        "resource_id",
        "subject",
        "headers",
        "stream",
        "stream_seq",
        "deliveries",
    )
}
_KEY = ["event_id", "consumer"]
_NEWER = ("subject", "headers", "stream", "stream_seq", "deliveries")


def _now(when: bool) -> Any:
    return database_time() if when else cast(null(), Double())


def _marks(status: str) -> dict[str, Any]:
    """What a row says besides what was given."""
    return {
        "consumer": bindparam("of_consumer", type_=Text()),
        "status": literal(status),
        "processing_attempts": literal(1),
        "created_at": database_time(),
        "updated_at": database_time(),
        "error_message": bindparam("why", type_=Text()),
        "received_at": database_time(),
        "processed_at": _now(status == PROCESSED),
        "failed_at": _now(status == FAILED),
    }


def _attempts(status: str) -> Any:
    """One more; but what was taken was counted then, and only ends."""
    if status == FAILED:
        return case((in_status(PROCESSING), c.processing_attempts), else_=c.processing_attempts + 1)
    return c.processing_attempts + 1


def _again(insert: Any, status: str) -> Any:
    """What becomes of a row that is there already, unless it is processed."""
    changed: dict[str, Any] = {name: insert.excluded[name] for name in _NEWER}
    changed |= {
        "status": insert.excluded.status,
        "processing_attempts": _attempts(status),
        "updated_at": insert.excluded.updated_at,
        "error_message": insert.excluded.error_message,
        "processed_at": insert.excluded.processed_at,
        "failed_at": insert.excluded.failed_at if status == FAILED else c.failed_at,
    }
    return changed


def _mark(status: str) -> Any:
    given = {name: bindparam(name, type_=kind) for name, kind in GIVEN.items()}
    insert = sqlite.insert(inbox).values({**given, **_marks(status)})
    return insert.on_conflict_do_update(
        index_elements=_KEY, set_=_again(insert, status), where=is_unprocessed
    )


def _mark_arrays(status: str) -> Any:
    """For PostgreSQL. In the order of their ids: who comes with some of the same at the same time
    waits for us, and not we for them as well. Returns the ids that were not yet processed."""
    arrays = (bindparam(name, type_=ARRAY(kind)) for name, kind in GIVEN.items())
    columns = (column(name, kind) for name, kind in GIVEN.items())
    given = func.unnest(*arrays).table_valued(*columns).render_derived().c
    values: dict[str, Any] = {name: given[name] for name in GIVEN}
    values |= {"headers": cast(given["headers"], JSON), **_marks(status)}
    rows = select(*values.values()).order_by(given["event_id"])
    insert = postgresql.insert(inbox).from_select(list(values), rows)
    return insert.on_conflict_do_update(
        index_elements=_KEY, set_=_again(insert, status), where=is_unprocessed
    ).returning(c.event_id)


MARK = {status: _mark(status) for status in (PROCESSED, FAILED)}
MARK_ARRAYS = {status: _mark_arrays(status) for status in (PROCESSED, FAILED)}
