"""The pipeline of the jobs, killed with its JVM."""

from collections import Counter

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
)

from chaos.drivers import Driver
from penstock.jobs import MEDIA, JobStage

# Who hangs is found out by what it does, not by the clock.
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture
def settings(tmp_path):
    with job_settings(tmp_path) as found:
        yield found


def test_a_driver_killed_in_the_middle_of_a_batch_loses_and_doubles_nothing(settings, tmp_path):
    CALLS.prepare(tmp_path)
    jobs = submit(settings, *(["slowish.wav"] * 6))
    driver = Driver(
        tmp_path,
        *("--master", "local[2]", "--url", settings.url, "--database", settings.database),
        *("--pipeline", PIPELINE, "--trigger", "0.1"),
    )
    driver.start()
    try:
        driver.wait_until(lambda: any(CALLS.of(tmp_path, job_id) for job_id in jobs), every=0.1)
        driver.kill()
        driver.start()
        driver.wait_until(all_ended(settings, jobs))
        driver.wait_until(lambda: all(v and MEDIA.is_end(v.stage) for v in views(settings, jobs)))
        assert driver.stop() == 0, driver.said()
    finally:
        driver.kill()
    assert driver.ended == 0, driver.said()
    assert {r.job.stage for r in records(settings, jobs)} == {JobStage.TRANSCRIPT_COMPLETE}
    events = Counter(record.message_id for record in stored(settings, "job-events"))
    assert len(events) == 18 and set(events.values()) == {1}
