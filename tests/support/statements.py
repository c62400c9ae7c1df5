"""What a database is told, for tests that count it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from penstock.transactional import Database


@contextmanager
def statements_of(database: Database) -> Iterator[list[str]]:
    """The statements that the database is told meanwhile, each on one line."""
    told: list[str] = []

    def tell(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        told.append(" ".join(statement.split()))

    engine = database._engine().sync_engine
    event.listen(engine, "before_cursor_execute", tell)
    try:
        yield told
    finally:
        event.remove(engine, "before_cursor_execute", tell)
