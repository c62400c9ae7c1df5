"""One statement for many rows.

SQLAlchemy looks at every value of every row, and that takes longer than what SQLite does with the
row. So there a statement is made once, and the rows go to the driver as they are: values must be
what it takes, text, bytes, numbers and None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Connection, CursorResult, Dialect
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import UpdateBase

Rows: TypeAlias = Sequence[Mapping[str, Any]]


# Rows from which on they are read, and what is made of them is made, before the transaction that
# writes it: nobody else can write to SQLite while it lasts, and to make rows takes longer than to
# write them. But to read them by themselves costs as much as some tens of them.
READ_FIRST = 100


class OvertakenError(Exception):
    """A row is not as it was when it was read: somebody else was faster. Raised inside a
    transaction, so that it is rolled back."""


class ManyRows:
    """A statement that is executed for each of some rows, which all have the same names in the
    same order. Answers how many rows of the table it was about."""

    def __init__(self, statement: UpdateBase) -> None:
        # Else the rows of an INSERT are not counted on PostgreSQL.
        self._statement = statement.execution_options(preserve_rowcount=True)
        self._made: dict[tuple[str, ...], tuple[str, tuple[str, ...], Mapping[str, Any]]] = {}

    async def execute(self, connection: AsyncConnection, rows: Rows) -> int:
        if connection.dialect.name == "sqlite":
            statement, values = self._for_driver(connection.dialect, rows)
            done: CursorResult[Any] = await connection.exec_driver_sql(statement, values)
            return done.rowcount
        return (await connection.execute(self._statement, rows)).rowcount

    async def execute_each(self, connection: AsyncConnection, rows: Rows) -> None:
        """`OvertakenError` unless it was about one row of the table for each of them."""
        if await self.execute(connection, rows) != len(rows):
            raise OvertakenError

    def execute_blocking(self, connection: Connection, rows: Rows) -> int:
        if connection.dialect.name == "sqlite":
            return connection.exec_driver_sql(*self._for_driver(connection.dialect, rows)).rowcount
        return connection.execute(self._statement, rows).rowcount

    def _for_driver(self, dialect: Dialect, rows: Rows) -> tuple[str, list[tuple[Any, ...]]]:
        names = tuple(rows[0])
        if names not in self._made:
            self._made[names] = self._make(dialect, names)
        text, places, fixed = self._made[names]
        if fixed:
            rows = [{**fixed, **row} for row in rows]
        return text, [tuple([row[place] for place in places]) for row in rows]

    def _make(
        self, dialect: Dialect, names: Sequence[str]
    ) -> tuple[str, tuple[str, ...], Mapping[str, Any]]:
        """The text, what its question marks stand for, and those that are no row's own."""
        made = self._statement.compile(dialect=dialect, column_keys=list(names))
        places = tuple(made.positiontup or ())
        fixed = {name: value for name, value in made.params.items() if name not in names}
        return str(made), places, fixed
