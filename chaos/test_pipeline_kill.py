"""The pipeline of the jobs, killed with its JVM, or its JVM alone.

`CHAOS_RUNS`: how often (1). Most of a run is Spark starting, twice.
"""

import os
import random
import sqlite3
import time
from collections import Counter
from contextlib import closing

import pytest
from tests.support.spark_handlers import CALLS
from tests.support.spark_jobs import (
    PIPELINE,
    job_settings,
    records,
    stored,
    submit,
)

from chaos.drivers import Driver
from penstock.jobs import JobStage

# Who hangs is found out by what it does, not by the clock.
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture
def settings(tmp_path):
    with job_settings(tmp_path) as found:
        yield found


def done(folder):
    """Jobs that the read model says are done: they went through all there is. Asked of the file,
    because to open a system of jobs takes as long as to run them."""
    with closing(sqlite3.connect(folder / "jobs.db", timeout=60)) as connection:
        statement = "SELECT count(*) FROM penstock_job_views WHERE stage = ?"
        return connection.execute(statement, [JobStage.TRANSCRIPT_COMPLETE.value]).fetchone()[0]


@pytest.mark.parametrize("run", range(int(os.environ.get("CHAOS_RUNS", "1"))))
def test_a_driver_killed_in_the_middle_of_a_batch_loses_and_doubles_nothing(
    settings, tmp_path, run
):
    CALLS.prepare(tmp_path)
    jobs = submit(settings, *(["slowish.wav"] * 6))
    driver = Driver(
        tmp_path,
        *("--master", "local[2]", "--url", settings.url, "--database", settings.database),
        *("--pipeline", PIPELINE, "--trigger", "0.1"),
    )
    driver.start()
    ended = 0
    try:
        driver.wait_until(lambda: any(CALLS.of(tmp_path, job_id) for job_id in jobs), every=0.1)
        # Handlers take a second: before they end, when they do, when what they did is sent.
        time.sleep(random.uniform(0, 2))
        victim = random.choice(["driver", "JVM"])
        print("killing the", victim, flush=True)
        if victim == "driver":
            driver.kill()
            driver.start()
        else:
            driver.kill_jvm()
            ended = 1
        driver.wait_until(lambda: done(tmp_path) == len(jobs), every=0.3)
        assert driver.stop() == 0, driver.said()
    finally:
        driver.kill()
    assert driver.ended == ended, driver.said()
    assert {r.job.stage for r in records(settings, jobs)} == {JobStage.TRANSCRIPT_COMPLETE}
    events = stored(settings, "job-events")
    assert len({event.message_id for event in events}) == len(events)
    assert Counter(event.attributes["jobId"] for event in events) == dict.fromkeys(jobs, 3)
