"""`penstock db`, as a person types it, on both databases."""

import asyncio
import json

import pytest

from penstock.cli.exit_codes import WRONG_USE
from penstock.transactional import Database, schema
from tests.support.processes import command, command_here
from tests.support.released_tables import make_released_database


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/app.db"
    return request.getfixturevalue("postgres").new_database()


def test_a_released_database_is_shown_written_down_and_upgraded(url):
    asyncio.run(release(url))
    code, said, _ = command_here("db", "status", PENSTOCK_DATABASE=url)
    assert code == 1
    assert "outbox   no version, needs outbox_3" in said
    assert "inbox    not there; made when first used" in said
    code, written, _ = command_here("db", "sql", "--database", url)
    assert code == 0 and "INSERT INTO penstock_schema" in written
    code, said, _ = command("db", "upgrade", "--database", url)
    assert code == 0 and "outbox   outbox_3 (was: no version)" in said
    assert command_here("db", "upgrade", "--database", url)[:2] == (0, "Nothing to do.\n")
    code, said, _ = command_here("db", "status", PENSTOCK_DATABASE=url)
    assert code == 0 and "jobs_3, up to date" in said
    lines = command_here("db", "status", "--json", PENSTOCK_DATABASE=url).out.splitlines()
    told = {one["part"]: one for one in map(json.loads, lines)}
    needed = {"part": "jobs", "exists": True, "has": "jobs_3", "needs": "jobs_3"}
    assert told["jobs"] == needed and told["inbox"]["exists"] is False
    assert all(one.current for one in asyncio.run(status(url)) if one.exists)


def test_the_address_may_be_in_a_file_as_secrets_are_mounted(tmp_path):
    secret, other = tmp_path / "secret", f"sqlite:///{tmp_path}/other.db"
    secret.write_text(f"sqlite:///{tmp_path}/app.db\n")
    mounted = {"PENSTOCK_DATABASE_FILE": str(secret)}
    code, said, _ = command_here("db", "upgrade", "--part", "outbox", **mounted)
    assert code == 0 and "outbox" in said and (tmp_path / "app.db").exists()
    code, _, said = command_here("db", "status", PENSTOCK_DATABASE=other, **mounted)
    assert code == WRONG_USE and "are both set" in said
    # What is typed is meant.
    assert command_here("db", "upgrade", "--database", other, "--all", **mounted)[0] == 0
    assert (tmp_path / "other.db").exists()


async def release(url):
    async with Database(url) as database:
        await make_released_database(database)


async def status(url):
    async with Database(url) as database:
        return await schema.status(database)


def test_everything_can_be_made_ahead_by_somebody_who_may(url):
    code, said, _ = command_here("db", "upgrade", "--all", "--database", url)
    assert code == 0 and "inbox    inbox_1 (was: not there)" in said
    code, said, _ = command_here("db", "status", "--database", url)
    assert code == 0 and said.count("up to date") == len(schema.PARTS)


def test_without_a_database_it_says_how_to_name_one():
    code, _, said = command_here("db", "status")
    assert code == WRONG_USE and "set PENSTOCK_DATABASE" in said
    code, _, said = command_here("db", "status", "--database", "mysql://secret@host/x")
    assert code == WRONG_USE and "No database for mysql://" in said and "secret" not in said
