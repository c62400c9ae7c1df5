"""One statement for many rows, on both databases alike."""

import pytest
from sqlalchemy import (
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    insert,
    update,
)
from sqlalchemy import select as query

from penstock.transactional import Database
from penstock.transactional.many_rows import ManyRows

pytestmark = pytest.mark.real_time
metadata = MetaData()
things = Table(
    "things",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text),
    Column("data", LargeBinary),
    Column("state", Text),
)
ADD = ManyRows(insert(things))
MARK = ManyRows(
    update(things)
    .where(things.c.id == bindparam("of"), things.c.state == "new")
    .values(name=bindparam("called"), state="old")
)


async def test_rows_are_kept_as_they_are_and_counted(url):
    async with Database(url) as database:
        await database.create_tables(metadata)
        rows = [
            {"id": n, "name": None if n % 2 else f"ü{n}", "data": bytes([n]), "state": "new"}
            for n in range(5)
        ]
        async with database.transaction() as connection:
            assert await ADD.execute(connection, rows) == 5
            marked = [{"of": 1, "called": "one"}, {"of": 99, "called": "none"}]
            assert await MARK.execute(connection, marked) == 1
            assert await MARK.execute(connection, marked) == 0
            found = (await connection.execute(query(things).order_by(things.c.id))).all()
    assert [tuple(row) for row in found][:3] == [
        (0, "ü0", b"\0", "new"),
        (1, "one", b"\1", "old"),
        (2, "ü2", b"\2", "new"),
    ]


async def test_rows_may_leave_columns_out_each_time_others(url):
    async with Database(url) as database:
        await database.create_tables(metadata)
        async with database.transaction() as connection:
            await ADD.execute(connection, [{"id": 1, "name": "a"}])
            await ADD.execute(connection, [{"id": 2, "state": "b"}, {"id": 3, "state": "c"}])
            found = (await connection.execute(query(things).order_by(things.c.id))).all()
    assert [(row.name, row.state) for row in found] == [("a", None), (None, "b"), (None, "c")]
