"""How tables of ours came to be what they are: a line of revisions for each part.

A change of a table is a new file here, named after its part and its number, and the new number in
`schema.py`. What is released is never changed. A test compares the outcome with the tables that the
code declares.
"""

from __future__ import annotations

from alembic import op

BEFORE = "before"
"""Under this name a revision finds the columns that each table had before the first of them ran."""


# Before there were versions, tables of one name came in several shapes.


def had(table: str, column: str) -> bool:
    return column in op.get_context().opts[BEFORE].get(table, ())


def lacked(table: str, column: str) -> bool:
    """Whether the table was there without it."""
    return table in op.get_context().opts[BEFORE] and not had(table, column)
