"""The pipeline of the jobs, killed with its JVM."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.support.spark_handlers import CALLS
from tests.support.spark_jobs import (
    PIPELINE,
    all_ended,
    job_settings,
    records,
    stored,
    submit,
    views,
    wait_for,
)

from penstock.jobs import MEDIA, JobStage

ROOT = Path(__file__).parents[1]


@pytest.fixture
def settings(tmp_path):
    with job_settings(tmp_path) as found:
        yield found


def test_a_driver_killed_in_the_middle_of_a_batch_loses_and_doubles_nothing(settings, tmp_path):
    CALLS.prepare(tmp_path)
    jobs = submit(settings, *(["slowish.wav"] * 6))
    command = [
        *(sys.executable, "-c", "from penstock.cli.main import main; main()", "pipeline"),
        *("run", "--master", "local[2]", "--url", settings.url),
        *("--database", settings.database, "--checkpoints", str(tmp_path / "checkpoints")),
        *("--pipeline", PIPELINE, "--trigger", "0.1"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    # Shown by nobody while all is well; kept with the folder of a trial that fails.
    log = (tmp_path / "drivers.log").open("ab")

    def start():
        return subprocess.Popen(
            command, start_new_session=True, stdout=log, stderr=log, env=environment
        )

    first = start()
    try:
        wait_for(lambda: any(CALLS.of(tmp_path, job_id) for job_id in jobs))
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    second = start()
    try:
        wait_for(all_ended(settings, jobs))
        wait_for(lambda: all(v and MEDIA.is_end(v.stage) for v in views(settings, jobs)))
    finally:
        second.terminate()
        assert second.wait(60) == 0
    assert {r.job.stage for r in records(settings, jobs)} == {JobStage.TRANSCRIPT_COMPLETE}
    events = Counter(record.message_id for record in stored(settings, "job-events"))
    assert len(events) == 18 and set(events.values()) == {1}
