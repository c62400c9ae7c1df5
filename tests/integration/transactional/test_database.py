"""Transactions, tables and kind errors, on SQLite and PostgreSQL."""

import asyncio
import signal
import sqlite3
import subprocess
import sys

import pytest
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, insert, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError

from penstock import errors
from penstock.transactional import Database, database_time
from tests.support.servers import PostgresServer

pytestmark = pytest.mark.real_time

metadata = MetaData()
parents = Table("parents", metadata, Column("id", Integer, primary_key=True))
children = Table(
    "children",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("parent", ForeignKey("parents.id"), nullable=False),
)


async def count(database: Database) -> int:
    async with database.transaction(reading=True) as connection:
        return len((await connection.execute(select(parents))).all())


async def test_what_a_block_wrote_is_there_when_it_ends_and_gone_when_it_raises(url):
    async with Database(url) as database:
        await database.create_tables(metadata)
        async with database.transaction() as connection:
            await connection.execute(insert(parents), [{"id": 1}, {"id": 2}])
        with pytest.raises(ZeroDivisionError):
            async with database.transaction() as connection:
                await connection.execute(insert(parents), {"id": 3})
                raise ZeroDivisionError
        assert await count(database) == 2


async def test_a_cancelled_transaction_is_rolled_back_and_leaves_nothing_locked(url):
    async with Database(url) as database:
        await database.create_tables(metadata)
        inside = asyncio.Event()

        async def write_and_hang():
            async with database.transaction() as connection:
                await connection.execute(insert(parents), {"id": 1})
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(write_and_hang())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with database.transaction() as connection:
            await connection.execute(insert(parents), {"id": 1})
        assert await count(database) == 1


async def test_writing_in_a_reading_transaction_fails_and_later_ones_may_write(url):
    async with Database(url) as database:
        await database.create_tables(metadata)
        with pytest.raises(DBAPIError):
            async with database.transaction(reading=True) as connection:
                await connection.execute(insert(parents), {"id": 1})
        for n in range(6):
            async with database.transaction() as connection:
                await connection.execute(insert(parents), {"id": n})
        assert await count(database) == 6


async def test_errors_of_the_callers_sql_stay_what_they_are(url):
    async with Database(url) as database:
        await database.create_tables(metadata)
        with pytest.raises(IntegrityError):
            async with database.transaction() as connection:
                await connection.execute(insert(children), {"id": 1, "parent": 404})
        with pytest.raises(DBAPIError) as caught:
            async with database.transaction() as connection:
                await connection.execute(text("SELECT :secret FROM nowhere"), {"secret": "hush"})
        assert "hush" not in str(caught.value)


async def test_the_databases_clock_moves_on_within_a_transaction(url):
    async with Database(url) as database, database.transaction() as connection:
        before = await database.time(connection)
        await asyncio.sleep(0.01)
        assert await database.time(connection) > before
        later = (await connection.execute(select(database_time() + 10))).scalar_one()
        assert later >= before + 10


def test_many_processes_may_create_the_same_tables_at_once(url):
    program = (
        "import asyncio, sys\n"
        "from penstock.transactional import Database, Outbox\n"
        "async def main():\n"
        "    async with Database(sys.argv[1]) as database:\n"
        "        print('ready', flush=True); sys.stdin.readline()\n"
        "        await Outbox(database).create()\n"
        "asyncio.run(main())\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", program, url], **pipes)
        for _ in range(3)
    ]
    for process in processes:
        process.stdout.readline()
    ends = [process.communicate(b"go\n", timeout=240)[1] for process in processes]
    assert ends == [b""] * 3


async def test_writers_of_many_tasks_and_two_handles_all_get_through(url):
    async with Database(url) as one, Database(url) as two:
        await one.create_tables(metadata)

        async def write(database, n):
            async with database.transaction() as connection:
                await connection.execute(insert(parents), {"id": n})

        await asyncio.gather(*(write((one, two)[n % 2], n) for n in range(40)))
        assert await count(one) == 40


async def test_sqlite_in_memory_is_one_database_for_all_transactions():
    async with Database("sqlite://") as database:
        await database.create_tables(metadata)
        async with database.transaction() as connection:
            await connection.execute(insert(parents), {"id": 1})
        assert await asyncio.gather(*(count(database) for _ in range(5))) == [1] * 5


async def test_sqlite_syncs_every_commit_and_checks_foreign_keys(tmp_path):
    async with (
        Database(f"sqlite:///{tmp_path}/app.db") as database,
        database.transaction() as connection,
    ):
        settings = {
            name: (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()
            for name in ("synchronous", "foreign_keys", "journal_mode")
        }
    journal = "wal" if sqlite3.sqlite_version_info >= (3, 51, 3) else "truncate"
    assert settings == {"synchronous": 2, "foreign_keys": 1, "journal_mode": journal}


async def test_a_file_another_process_keeps_locked_is_unavailable_not_a_hang(tmp_path):
    path = tmp_path / "app.db"
    async with Database(f"sqlite:///{path}", busy_timeout=0.05) as database:
        await database.create_tables(metadata)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.UnavailableError, match="locked"):
            async with database.transaction():
                pass
        other.close()
        async with database.transaction():
            pass


async def test_a_transaction_inside_another_says_so_on_sqlite(tmp_path):
    async with Database(f"sqlite:///{tmp_path}/app.db", busy_timeout=0.05) as database:
        with pytest.raises(errors.UnavailableError, match="inside another"):
            async with database.transaction(), database.transaction():
                pass


@pytest.mark.parametrize(
    "address",
    [
        "mysql://u:hunter2@host/db",
        "hunter2",
        "postgresql://u:hunter2@host:port/db",
        7,
        b"sqlite://",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_showing_it(address):
    with pytest.raises(errors.InvalidArgumentError) as caught:
        Database(address)
    assert "hunter2" not in str(caught.value)


async def test_no_error_or_repr_shows_the_password(postgres):
    host = f"127.0.0.1:{postgres.port}"
    for address, kind in (
        (f"postgresql://penstock:hunter2@{host}/postgres", errors.UnauthenticatedError),
        (postgres.url("missing"), errors.NotFoundError),
        ("postgresql://u:hunter2@127.0.0.1:1/db", errors.UnavailableError),
        ("postgresql://u@127.0.0.1:1/db?password=hunter2", errors.UnavailableError),
        ("postgresql://u:hunter2@no-such-host.invalid/db", errors.UnavailableError),
    ):
        with pytest.raises(kind) as caught:
            await Database.open(address)
        chain = [caught.value, caught.value.__cause__, Database(address)]
        assert caught.value.__suppress_context__
        for shown in map(repr, chain):
            assert "hunter2" not in shown and postgres.password not in shown


async def test_an_address_without_its_password_is_refused_and_does_not_get_better(postgres):
    url = make_url(postgres.new_database()).set(password=None)
    with pytest.raises(errors.UnauthenticatedError, match="refused us"):
        await Database.open(url.render_as_string())


async def test_a_folder_that_is_not_there_is_unavailable(tmp_path):
    with pytest.raises(errors.UnavailableError, match="unable to open"):
        await Database.open(f"sqlite:///{tmp_path}/missing/app.db")


async def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path):
    (tmp_path / "notes.pdf").write_bytes(b"%PDF-1.4")
    with pytest.raises(errors.FailedPreconditionError, match=r"notes\.pdf.*right path"):
        async with Database(f"sqlite:///{tmp_path}/notes.pdf") as database:
            await database.ping()
    assert (tmp_path / "notes.pdf").read_bytes() == b"%PDF-1.4"


async def test_opening_a_file_once_more_takes_no_lock_from_whoever_writes(tmp_path):
    """Locks on a file are a process's, and whatever of it closes the file lets go of them."""
    another = "import sqlite3, sys; sqlite3.connect(sys.argv[1], 0.1).execute('BEGIN IMMEDIATE')"
    url = f"sqlite:///{tmp_path}/app.db"
    async with Database(url) as database, database.transaction() as connection:
        await connection.execute(text("CREATE TABLE things (id INTEGER)"))
        await (await Database.open(url)).aclose()
        command = [sys.executable, "-c", another, str(tmp_path / "app.db")]
        ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
        assert b"database is locked" in ran.stderr


async def test_a_closed_database_says_so(url):
    database = await Database.open(url)
    await database.aclose()
    await database.aclose()
    with pytest.raises(errors.ClosedError):
        await database.ping()


async def test_a_server_that_crashed_is_unavailable_and_then_usable_again():
    with PostgresServer() as server:
        async with Database(server.url()) as database:
            await database.create_tables(metadata)
            with pytest.raises(errors.UnavailableError):
                async with database.transaction() as connection:
                    await connection.execute(insert(parents), {"id": 1})
                    server.stop(signal.SIGQUIT)
                    await connection.execute(insert(parents), {"id": 2})
            with pytest.raises(errors.UnavailableError):
                await database.ping()
            server.start()
            assert await count(database) == 0


async def test_a_peer_that_is_gone_without_a_word_is_noticed_unless_told_otherwise(postgres):
    async def told(url):
        async with Database(url) as database, database.transaction(reading=True) as connection:
            raw = (await connection.get_raw_connection()).driver_connection
            return raw.info.get_parameters()

    said = await told(postgres.url())
    assert said["keepalives_idle"] == "30" and said["tcp_user_timeout"] == "60000"
    said = await told(f"{postgres.url()}?keepalives_idle=7")
    assert said["keepalives_idle"] == "7" and said["keepalives_count"] == "3"


async def test_a_connection_that_ended_while_it_lay_idle_is_made_anew(postgres, monkeypatch):
    async with Database(postgres.url()) as database, Database(postgres.url()) as other:

        async def number():
            async with database.transaction(reading=True) as connection:
                return (await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one()

        first = await number()
        assert await number() == first
        async with other.transaction() as connection:
            ended = text("SELECT pg_terminate_backend(:number, 5000)")
            assert (await connection.execute(ended, {"number": first})).scalar_one()
        monkeypatch.setattr("penstock.transactional.engine._IDLE", 0.0)
        assert await number() != first
