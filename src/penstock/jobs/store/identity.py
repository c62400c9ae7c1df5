"""Which database this is: a name that is made with its tables, so that a process elsewhere can tell
whether what it opened under an address is what was meant by it."""

from __future__ import annotations

import uuid

from sqlalchemy import Column, Integer, MetaData, String, Table, select
from sqlalchemy.exc import DBAPIError

from penstock.errors import FailedPreconditionError
from penstock.transactional import Database, insert_into
from penstock.transactional.schema import prepare

metadata = MetaData()
_identity = Table(
    "penstock_database",
    metadata,
    Column("row", Integer, primary_key=True, autoincrement=False),
    Column("identity", String(36), nullable=False),
)
_NAMED = select(_identity.c.identity).where(_identity.c.row == 1)


async def identity_of(database: Database) -> str:
    """The database's own name; made when it has none yet."""
    await prepare(database, "identity", metadata)
    async with database.transaction() as connection:
        own = {"row": 1, "identity": str(uuid.uuid4())}
        insert = insert_into(connection, _identity).on_conflict_do_nothing(index_elements=["row"])
        await connection.execute(insert, own)
        return str(await connection.scalar(_NAMED))


async def check_identity(database: Database, expected: str) -> None:
    """Raise unless this is the database of that name. Nothing is created."""
    try:
        async with database.transaction(reading=True) as connection:
            found = await connection.scalar(_NAMED)
    except DBAPIError:
        found = None
    if found != expected:
        raise FailedPreconditionError(
            f"The database here ({database.place}) is not the one that the driver uses, though "
            "their addresses are the same; use one that every machine reaches under its address"
        )
