"""The whole pipeline on a cluster while jobs are asked for all the time and everything is killed.

`CHAOS_DRIVER_KILLS`, `CHAOS_EXECUTOR_KILLS`, `CHAOS_WORKER_KILLS`: how often (10, 5, 2).
`CHAOS_PAUSE`: seconds between jobs (0.5).
"""

import asyncio
import os
import random
import signal
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from tests.support.spark_cluster import driver_environment
from tests.support.spark_jobs import records, stored

from chaos.drivers import Driver
from penstock.jobs import JobStage, MediaType, job_system, load_settings
from penstock.spark.session.shipping import ship

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
DONE = JobStage.TRANSCRIPT_COMPLETE.value
pytestmark = pytest.mark.timeout(4 * 3600)


def times(what, usual):
    return int(os.environ.get(f"CHAOS_{what}_KILLS", usual))


@pytest.fixture
def settings(server, postgres):
    return load_settings(environ={}, url=server.url, database=postgres.new_database())


class Asking:
    """Asks for jobs, one after the other, until it is told to stop."""

    def __init__(self, settings):
        self.jobs = []
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask()))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    async def _ask(self):
        pause = float(os.environ.get("CHAOS_PAUSE", "0.5"))
        async with job_system(self._settings) as system, system.ingesting() as ingestion:
            while not self._stop.is_set():
                made, _ = await ingestion.service.submit("user-1", MediaType.AUDIO, "a.wav")
                self.jobs.append(made.job.job_id)
                await asyncio.sleep(pause)
            while await ingestion.outbox.pending():
                await asyncio.sleep(0.02)


class Trial:
    """What is done to the pipeline, each time once it has gone on since the last."""

    def __init__(self, driver, cluster, settings):
        self.driver, self.cluster, self.settings = driver, cluster, settings

    def done(self):
        """Jobs that the read model says are done: they went through all there is."""
        statement = "SELECT count(*) FROM penstock_job_views WHERE stage = %s"
        with suppress(psycopg.errors.UndefinedTable):
            with psycopg.connect(self.settings.database) as connection:
                found = connection.execute(statement, [DONE]).fetchone()
                return found[0]
        return 0

    def wait_for_more(self):
        before = self.done()
        self.driver.wait_until(lambda: self.done() > before, every=0.3)

    def kill_driver(self):
        self.driver.kill()
        self.driver.start()

    def kill_executor(self):
        self.driver.wait_until(self.cluster.executors)
        for pid in list(self.cluster.executors().values())[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def restart_worker(self):
        """One after the other, with all that runs there."""
        number = random.choice([0, 1])
        self.cluster.kill_worker(number)
        self.cluster.start_worker(number)


@contextmanager
def driven(cluster, settings, folder):
    ship(folder / "environment.tar.gz", extras=["nats", "sql"])
    driver = Driver(
        folder,
        *("--master", cluster.master, "--environment", str(folder / "environment.tar.gz")),
        *("--url", settings.url, "--database", settings.database),
        *("--pipeline", "cluster_handlers:PIPELINE"),
        *("--py-files", str(SUPPORT / "cluster_handlers.py")),
        *("--history", str(folder / "history"), "--trigger", "0.1"),
        *("--conf", "spark.executor.memory=512m", "--conf", "spark.executor.cores=1"),
        **{**driver_environment(), "PYTHONPATH": str(SUPPORT)},
    )
    driver.start()
    try:
        yield driver
    finally:
        driver.kill()


def test_whatever_is_killed_every_job_asked_for_is_done_once(cluster, settings, tmp_path):
    from deltalake import DeltaTable

    with driven(cluster, settings, tmp_path) as driver:
        trial = Trial(driver, cluster, settings)
        deeds = [
            *[trial.kill_driver] * times("DRIVER", 10),
            *[trial.kill_executor] * times("EXECUTOR", 5),
            *[trial.restart_worker] * times("WORKER", 2),
        ]
        random.shuffle(deeds)
        with Asking(settings) as asking:
            for deed in deeds:
                trial.wait_for_more()
                print(deed.__name__, "after", trial.done(), "of", len(asking.jobs), flush=True)
                deed()
            trial.wait_for_more()
        driver.wait_until(lambda: trial.done() == len(asking.jobs))
        assert driver.stop() == 0, driver.said()
    jobs = asking.jobs
    assert {one.job.stage for one in records(settings, jobs)} == {JobStage.TRANSCRIPT_COMPLETE}
    with psycopg.connect(settings.database) as connection:
        shown = [row[0] for row in connection.execute("SELECT job_id FROM penstock_job_views")]
    assert sorted(shown) == sorted(jobs)
    events = stored(settings, "job-events")
    assert len(events) == len({event.message_id for event in events}) == 3 * len(jobs)
    kept = DeltaTable(str(tmp_path / "history")).to_pyarrow_table()
    assert sorted(kept["sequence"].to_pylist()) == list(range(1, len(events) + 1))
    assert Counter(kept["job_id"].to_pylist()) == dict.fromkeys(jobs, 3)
