"""What a database is told, for tests that count it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
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


@contextmanager
def before_the_next_change(
    database: Database, act: Callable[[], Awaitable[object]]
) -> Iterator[None]:
    """What another does when what is to be changed was read, and nothing is written yet: `act` is
    called once, before the next transaction that writes."""
    transaction, left = database.transaction, [act]

    @asynccontextmanager
    async def disturbed(*, reading: bool = False) -> AsyncIterator[Any]:
        if left and not reading:
            await left.pop()()
        async with transaction(reading=reading) as connection:
            yield connection

    database.transaction = disturbed  # type: ignore[method-assign]
    try:
        yield
    finally:
        del database.transaction  # type: ignore[method-assign]
