"""Whoever was cancelled, or lost its event loop, in the middle of a statement holds no lock."""

import asyncio
import gc
import sqlite3
import threading

import pytest
from sqlalchemy import text

from penstock.transactional import Database
from penstock.transactional.sqlite_connection import SqliteConnection

pytestmark = pytest.mark.real_time


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs.db"


@pytest.fixture(autouse=True)
def _uncollected():
    """What only the garbage collector lets go of may be kept for hours."""
    gc.disable()
    yield
    gc.enable()


class Slow:
    """A function in SQL that takes until it is told to return."""

    def __init__(self):
        self.is_called = asyncio.Event()
        self.may_return = threading.Event()

    async def in_statement(self, database, *, reading):
        loop = asyncio.get_running_loop()

        def slow():
            loop.call_soon_threadsafe(self.is_called.set)
            return self.may_return.wait(60)

        async with database.transaction(reading=reading) as connection:
            raw = await connection.get_raw_connection()
            await raw.driver_connection.create_function("slow", 0, slow)
            await connection.execute(text("SELECT slow() FROM things"))


def can_be_locked(path):
    """By somebody else, alone, at once."""
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        return False
    finally:
        other.close()
    return True


async def with_things(path=None):
    database = await Database.open("sqlite://" if path is None else f"sqlite:///{path}")
    async with database.transaction() as connection:
        await connection.execute(text("CREATE TABLE things AS SELECT 1 AS id UNION SELECT 2"))
    return database


@pytest.mark.parametrize("reading", [True, False])
async def test_a_statement_that_is_cancelled_leaves_no_lock(path, reading):
    database, slow = await with_things(path), Slow()
    task = asyncio.create_task(slow.in_statement(database, reading=reading))
    await slow.is_called.wait()
    task.cancel()
    slow.may_return.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert can_be_locked(path)
    await database.aclose()


async def test_one_that_is_cancelled_twice_ends_at_once_and_lets_go_when_its_statement_ends(path):
    database, slow = await with_things(path), Slow()
    before = asyncio.all_tasks()
    task = asyncio.create_task(slow.in_statement(database, reading=False))
    await slow.is_called.wait()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert not can_be_locked(path)
    slow.may_return.set()
    while left := asyncio.all_tasks() - before:
        await asyncio.wait(left)
    assert can_be_locked(path)
    await database.aclose()


async def test_a_database_in_memory_outlives_a_statement_that_is_cancelled():
    database, slow = await with_things(), Slow()
    task = asyncio.create_task(slow.in_statement(database, reading=False))
    await slow.is_called.wait()
    task.cancel()
    slow.may_return.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with database.transaction() as connection:
        await connection.execute(text("INSERT INTO things VALUES (3)"))
        assert await connection.scalar(text("SELECT count(*) FROM things")) == 3
    await database.aclose()


async def test_databases_in_memory_are_apart():
    one, other = await with_things(), await with_things()
    async with one.transaction() as connection:
        await connection.execute(text("DELETE FROM things"))
    async with other.transaction(reading=True) as connection:
        assert await connection.scalar(text("SELECT count(*) FROM things")) == 2
    await one.aclose()
    await other.aclose()


def test_an_event_loop_that_ends_in_the_middle_of_a_statement_leaves_no_lock(path):
    called, may_return = threading.Event(), threading.Event()

    def begin():
        connection._opened.execute("BEGIN IMMEDIATE")
        called.set()
        may_return.wait(60)

    connection = SqliteConnection(str(path), lambda _: None, isolation_level=None)
    loop = asyncio.new_event_loop()

    async def connect():
        await connection
        statement = asyncio.ensure_future(connection._execute(begin))
        await asyncio.to_thread(called.wait)
        statement.cancel()

    loop.run_until_complete(connect())
    loop.close()
    assert not can_be_locked(path)
    connection.stop()
    may_return.set()
    connection._thread.join()
    assert can_be_locked(path)


class Visits:
    """Counts what goes to the thread of a connection."""

    def __init__(self, connection):
        self._put, self.count = connection._tx.put_nowait, 0
        connection._tx = self

    def put_nowait(self, call):
        self.count += 1
        self._put(call)


async def test_a_statement_and_what_it_finds_are_one_visit_to_the_thread(path):
    database = await with_things(path)
    async with database.transaction() as connection:
        raw = await connection.get_raw_connection()
        visits = Visits(raw.driver_connection)
        for _ in range(3):
            rows = await connection.execute(text("SELECT id FROM things ORDER BY id"))
            assert [row.id for row in rows] == [1, 2]
        insert = text("INSERT INTO things VALUES (:id)")
        assert (await connection.execute(insert, [{"id": 3}, {"id": 4}])).rowcount == 2
        assert visits.count == 4
    # The commit; that the connection goes back to its pool is none.
    assert visits.count == 5
    await database.aclose()


async def test_what_a_statement_finds_can_be_read_bit_by_bit(path):
    database = await with_things(path)
    async with database.transaction(reading=True) as connection:
        stream = await connection.stream(text("SELECT id FROM things ORDER BY id"))
        assert await stream.fetchone() == (1,)
        assert await stream.fetchmany(5) == [(2,)]
        assert await stream.fetchall() == []
    await database.aclose()


async def test_a_block_that_fails_is_rolled_back(path):
    database = await with_things(path)
    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as connection:
            await connection.execute(text("DELETE FROM things"))
            raise ZeroDivisionError
    assert can_be_locked(path)
    async with database.transaction(reading=True) as connection:
        assert await connection.scalar(text("SELECT count(*) FROM things")) == 2
    await database.aclose()
