"""Versions of tables: a database of yesterday is noticed, named and brought up to date."""

import asyncio
import re

import pytest
from sqlalchemy import MetaData, text

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.jobs import ProcessingJobStore, SqlJobViews
from penstock.jobs.store.identity import metadata as identity
from penstock.jobs.store.records import metadata as jobs
from penstock.jobs.views.sql import sql_metadata as views
from penstock.transactional import Database, Inbox, Outbox, schema
from penstock.transactional.inbox_table import metadata as inbox
from penstock.transactional.outbox_table import metadata as outbox
from tests.support.outbox_scenes import ids, outbox_on
from tests.support.released_tables import JOB, ROWS, make_released_database

pytestmark = pytest.mark.real_time

DECLARED: dict[str, MetaData] = {
    "outbox": outbox,
    "inbox": inbox,
    "jobs": jobs,
    "views": views,
    "identity": identity,
}


async def run(database, statement):
    async with database.transaction() as connection:
        return await connection.execute(text(statement))


async def described(database):
    """Columns and indexes of our tables, as the database tells them."""
    if database.dialect == "sqlite":
        found = await run(
            database,
            "SELECT m.tbl_name || ' ' || p.name || ' ' || p.type || p.\"notnull\" || p.pk "
            "FROM sqlite_master m, pragma_table_info(m.name) p WHERE m.type = 'table' "
            "UNION ALL SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
        )
    else:
        found = await run(
            database,
            "SELECT concat_ws(' ', table_name, column_name, data_type, is_nullable, "
            "character_maximum_length) FROM information_schema.columns "
            "WHERE table_schema = 'public' "
            "UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'",
        )
    shown = (re.sub(r"IF NOT EXISTS |[()\s]+", " ", row) for row in found.scalars())
    return sorted(line for line in shown if schema.VERSION_TABLE not in line)


@pytest.fixture
def another_url(url, request, tmp_path):
    if url.startswith("sqlite"):
        return f"sqlite:///{tmp_path}/another.db"
    return request.getfixturevalue("postgres").new_database()


async def test_the_revisions_lead_to_the_tables_that_the_code_declares(url, another_url):
    async with Database(url) as migrated, Database(another_url) as declared:
        await schema.upgrade(migrated, list(schema.PARTS))
        for metadata in DECLARED.values():
            await declared.create_tables(metadata)
        assert await described(migrated) == await described(declared)


async def test_a_released_database_ends_up_the_same(url, another_url):
    async with Database(url) as released, Database(another_url) as declared:
        await make_released_database(released)
        await schema.upgrade(released, list(schema.PARTS))
        for metadata in DECLARED.values():
            await declared.create_tables(metadata)
        assert await described(released) == await described(declared)


# Shapes that tables had between the released ones and the first that had versions.
SHAPES = {
    "attempts wait in the outbox": [
        "DROP INDEX penstock_jobs_to_retry",
        "ALTER TABLE penstock_jobs DROP COLUMN retry_us",
        "ALTER TABLE penstock_jobs DROP COLUMN ready_us",
    ],
    "columns were added": [
        "ALTER TABLE penstock_jobs ADD COLUMN fields {binary}",
        (
            "CREATE TABLE penstock_results (job_id VARCHAR(36) NOT NULL, "
            "stage VARCHAR(48) NOT NULL, run INTEGER NOT NULL, "
            "result {binary} NOT NULL, PRIMARY KEY (job_id, stage))"
        ),
    ],
}
SHAPES["made anew"] = [
    *SHAPES["attempts wait in the outbox"],
    *SHAPES["columns were added"],
    "ALTER TABLE penstock_jobs DROP COLUMN video_id",
]


@pytest.mark.parametrize("shape", SHAPES)
async def test_jobs_of_every_shape_end_up_the_same_with_their_rows(url, another_url, shape):
    async with Database(url) as database, Database(another_url) as declared:
        await make_released_database(database)
        for statement in SHAPES[shape]:
            binary = "BLOB" if database.dialect == "sqlite" else "BYTEA"
            await run(database, statement.format(binary=binary))
        await schema.upgrade(database, list(schema.PARTS))
        for metadata in DECLARED.values():
            await declared.create_tables(metadata)
        assert await described(database) == await described(declared)
        async with ProcessingJobStore(database) as store:
            record = await store.get(JOB)
            assert record is not None and record.title == "An interview"


async def test_an_upgrade_that_would_forget_waiting_jobs_is_refused(url):
    async with Database(url) as database:
        await make_released_database(database)
        await run(database, "UPDATE penstock_jobs SET retry_us = 1")
        with pytest.raises(FailedPreconditionError, match="1 jobs wait to be tried again"):
            await schema.upgrade(database)
        assert {one.has for one in await schema.status(database)} == {None}


def test_every_part_has_its_revisions_and_its_tables():
    scripts = schema._scripts()
    assert set(scripts.get_heads()) == {part.head for part in schema.PARTS.values()}
    assert DECLARED.keys() == schema.PARTS.keys()
    for name, part in schema.PARTS.items():
        assert set(part.tables) == set(DECLARED[name].tables)


async def test_a_released_database_is_refused_with_the_command_to_run(url):
    async with Database(url) as database:
        await make_released_database(database)
        for start in (Outbox(database).create, ProcessingJobStore(database).__aenter__):
            with pytest.raises(FailedPreconditionError, match="penstock db upgrade --database"):
                await start()
        with pytest.raises(FailedPreconditionError, match=r"at no version.*needs views_"):
            await SqlJobViews(database).__aenter__()


async def test_what_a_released_database_held_is_there_after_the_upgrade(url):
    async with Database(url) as database:
        await make_released_database(database)
        before = await schema.upgrade(database)
        assert {one.part.name: one.has for one in before} == dict.fromkeys(
            ("outbox", "jobs", "views")
        )
        async with ProcessingJobStore(database) as store:
            record = await store.get(JOB)
            assert record is not None and record.title == "An interview"
        async with SqlJobViews(database) as kept:
            view = await kept.get(JOB)
            assert view is not None and view.stage == "Queued"
            assert (await kept.position("job-events")).sequence == 7
    async with outbox_on(url) as scene:
        status = await scene.outbox.status()
        assert (status.pending, status.dead) == (3, 1)
        async with scene.relay():
            await scene.drained()
        assert sorted(ids(await scene.stored())) == ["m-1", "m-2", "m-5"]
        [dead] = await scene.outbox.dead()
        assert dead.message_id == "m-4"


async def test_upgrading_again_does_nothing(url):
    async with Database(url) as database:
        await make_released_database(database)
        assert await schema.upgrade(database)
        before = await described(database)
        assert await schema.upgrade(database) == []
        assert await described(database) == before


async def test_an_upgrade_that_fails_changes_nothing(url):
    async with Database(url) as database:
        await make_released_database(database)
        # What a revision wants to drop is not there: this is no table of ours.
        await run(database, "DROP TABLE penstock_outbox")
        await run(database, "CREATE TABLE penstock_outbox (id INTEGER)")
        before = await described(database)
        with pytest.raises(Exception, match=r"penstock_outbox|state"):
            await schema.upgrade(database)
        assert await described(database) == before
        assert {one.has for one in await schema.status(database)} == {None}


async def test_only_parts_that_are_there_are_upgraded_unless_named(url):
    async with Database(url) as database:
        await make_released_database(database, "penstock_outbox")
        assert [one.part.name for one in await schema.upgrade(database)] == ["outbox"]
        told = {one.part.name: str(one) for one in await schema.status(database)}
        assert told["outbox"] == "outbox_3, up to date"
        assert told["inbox"] == "not there; made when first used"
        assert [one.part.name for one in await schema.upgrade(database, ["inbox"])] == ["inbox"]
        with pytest.raises(InvalidArgumentError, match="no part gone"):
            await schema.upgrade(database, ["gone"])


async def test_a_part_is_made_when_it_is_first_used_and_is_then_up_to_date(url):
    async with Database(url) as database, Database(url) as another:
        inboxes = [Inbox(one, "api") for one in (database, another) * 3]
        await asyncio.gather(*(inbox.create() for inbox in inboxes))
        await Outbox(database).create()
        current = [one.part.name for one in await schema.status(database) if one.current]
        assert current == ["outbox", "inbox"]


async def test_tables_of_a_newer_penstock_are_left_alone(url):
    async with Database(url) as database:
        await Outbox(database).create()
        await run(database, "UPDATE penstock_schema SET version_num = 'outbox_99'")
        for work in (Outbox(database).create(), schema.upgrade(database)):
            with pytest.raises(FailedPreconditionError, match="use the newer Penstock"):
                await work
        [outbox, *_] = await schema.status(database)
        assert str(outbox) == "outbox_99, newer than this"


async def test_a_column_that_is_missing_is_named_at_the_start(url):
    async with Database(url) as database:
        await Outbox(database).create()
        await run(database, "ALTER TABLE penstock_outbox DROP COLUMN ttl")
        with pytest.raises(FailedPreconditionError, match=r"lack penstock_outbox\.ttl"):
            await Outbox(database).create()


async def test_the_sql_of_an_upgrade_can_be_run_by_somebody_else(url, another_url):
    async with Database(url) as database, Database(another_url) as other:
        for one in (database, other):
            await make_released_database(one)
        written = await schema.upgrade_sql(database, list(schema.PARTS))
        assert {one.has for one in await schema.status(database)} == {None}
        async with database.transaction() as connection:
            for statement in filter(str.strip, re.split(r";\n", written)):
                await connection.execute(text(statement))
        await schema.upgrade(other, list(schema.PARTS))
        assert await described(database) == await described(other)
        assert all(one.current for one in await schema.status(database))
        assert await schema.upgrade_sql(database) == ""


def test_the_released_rows_are_of_every_state():
    assert {row["state"] for row in ROWS["penstock_outbox"]} == {"pending", "published", "dead"}
