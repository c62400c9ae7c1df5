"""A cluster of separate processes, whose executors have nothing but Spark and Python."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.support import nats_scenes
from tests.support.nats_scenes import fill, make
from tests.support.spark_cluster import driver_environment
from tests.support.spark_jobs import records, stored, submit, views, wait_for

from penstock.jobs import MEDIA, JobStage, load_settings
from penstock.spark.session.shipping import ship

pytestmark = pytest.mark.timeout(900)
DRIVER = Path(__file__).parents[1] / "tests" / "support" / "cluster_driver.py"
JOBS = 30


def test_what_is_shipped_reads_writes_and_runs_the_pipeline_though_a_worker_dies(
    cluster, server, postgres, tmp_path
):
    archive = tmp_path / "environment.tar.gz"
    ship(archive, extras=["nats", "sql"])
    make(server.url, "orders", "copied")
    fill(server.url, "orders", range(100))
    settings = load_settings(environ={}, url=server.url, database=postgres.new_database())
    jobs = submit(settings, *(["a.wav"] * JOBS))
    words = [cluster.master, str(archive), settings.url, settings.database, str(tmp_path)]
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, DRIVER, *words], stdout=log, stderr=log, env=driver_environment()
        )

    def ended():
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-5000:]
        return sum(MEDIA.is_end(one.job.stage) for one in records(settings, jobs))

    def begun():
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-5000:]
        return any(one.job.stage != JobStage.QUEUED for one in records(settings, jobs))

    try:
        wait_for(begun, within=400)
        cluster.kill_worker(0)
        cluster.start_worker(0)
        wait_for(lambda: ended() == JOBS, within=400)
        wait_for(lambda: all(v and MEDIA.is_end(v.stage) for v in views(settings, jobs)))
        driver.terminate()
        assert driver.wait(120) == 0, (tmp_path / "driver.log").read_text()[-5000:]
    finally:
        driver.kill()
        driver.wait()
    assert {one.job.stage for one in records(settings, jobs)} == {JobStage.TRANSCRIPT_COMPLETE}
    events = Counter(record.message_id for record in stored(settings, "job-events"))
    assert len(events) == 3 * JOBS and set(events.values()) == {1}
    assert sorted(map(int, nats_scenes.stored(server.url, "copied"))) == list(range(40, 100))
