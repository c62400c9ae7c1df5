"""Where the jobs are, for tasks that run elsewhere."""

import pytest
from sqlalchemy import inspect

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.jobs import load_settings
from penstock.jobs.store.identity import check_identity, identity_of
from penstock.spark.jobs.places import absolute, check_file, check_reach, prepare_database
from penstock.transactional import Database


def settings(**given):
    return load_settings(environ={}, **{"url": "nats://127.0.0.1", **given})


def test_paths_are_absolute_before_they_travel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = absolute(
        settings(url="local://./data", database="sqlite:///jobs.db", media={"root": "media"})
    )
    assert found.url == f"local://{tmp_path}/data"
    assert found.database == f"sqlite:///{tmp_path}/jobs.db"
    assert found.media.root == f"{tmp_path}/media"


def test_what_an_address_says_besides_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = absolute(settings(database="sqlite:///jobs.db?timeout=3"))
    assert found.database == f"sqlite:///{tmp_path}/jobs.db?timeout=3"


@pytest.mark.parametrize("address", ["postgresql://u:p@h/d", "sqlite:////var/jobs.db"])
def test_what_means_the_same_everywhere_is_left_alone(address):
    found = settings(database=address)
    assert absolute(found) == found


@pytest.mark.parametrize("master", ["spark://host:7077", "k8s://https://host", "yarn"])
def test_sqlite_is_refused_where_tasks_run_on_other_machines(master):
    with pytest.raises(InvalidArgumentError, match="postgresql://user@host/database"):
        check_reach(settings(database="sqlite:///jobs.db"), master)
    check_reach(settings(database="postgresql://h/d"), master)


def test_a_server_of_this_machine_is_refused_where_tasks_run_on_others(tmp_path):
    ours = settings(url=f"local://{tmp_path}", database="postgresql://h/d")
    with pytest.raises(InvalidArgumentError, match="nats://host"):
        check_reach(ours, "spark://host:7077")
    check_reach(ours, "local-cluster[2,1,1024]")


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_sqlite_is_taken_on_one_machine(master):
    check_reach(settings(database="sqlite:///jobs.db"), master)


def test_a_database_in_memory_is_refused():
    with pytest.raises(InvalidArgumentError, match="in memory"):
        absolute(settings(database="sqlite://"))


def test_a_file_that_is_not_there_is_not_made_by_a_task(tmp_path):
    with pytest.raises(FailedPreconditionError, match="no database"):
        check_file(settings(database=f"sqlite:///{tmp_path}/jobs.db"))
    assert not (tmp_path / "jobs.db").exists()


async def test_the_driver_makes_every_table_and_a_task_finds_the_database_to_be_its_own(tmp_path):
    found = settings(database=f"sqlite:///{tmp_path}/jobs.db")
    identity = await prepare_database(found)
    assert await prepare_database(found) == identity
    async with Database(found.database) as database:
        await check_identity(database, identity)
        async with database.transaction(reading=True) as connection:
            names = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
    assert {"penstock_jobs", "penstock_job_views", "penstock_outbox"} <= set(names)


async def test_another_database_is_refused(tmp_path):
    identity = await prepare_database(settings(database=f"sqlite:///{tmp_path}/jobs.db"))
    async with Database(f"sqlite:///{tmp_path}/other.db") as other:
        with pytest.raises(FailedPreconditionError, match="is not the one that the driver uses"):
            await check_identity(other, identity)
        assert await identity_of(other) != identity
        with pytest.raises(FailedPreconditionError, match="is not the one that the driver uses"):
            await check_identity(other, identity)
