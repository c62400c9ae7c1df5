"""The stages of the jobs on Spark: the same result as by the asyncio worker, whatever dies."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import Draft
from penstock.brokers.nats.local import LocalServer
from penstock.errors import InvalidArgumentError
from penstock.jobs import JobStage, MediaType, job_system, load_settings
from penstock.jobs.views import SqlJobViews
from penstock.spark.pipeline import Pipeline, PipelineOptions
from penstock.transactional import Database
from tests.spark_handlers import CALLS

pytestmark = [pytest.mark.timeout(240)]
HANDLERS = "tests.spark_handlers:STAGES"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def settings(tmp_path):
    folder = tmp_path / "broker"
    quick = {"minimum_backoff": 0, "maximum_backoff": 0, "max_attempts": 3}
    found = load_settings(
        environ={},
        url=f"local://{folder}",
        database=f"sqlite:///{tmp_path}/jobs.db",
        stages={"metadata": quick, "transcription": quick},
        api={"views": "sql"},
    )
    LocalServer(folder).keep()
    yield found
    LocalServer(folder).stop()


def options(tmp_path, **more):
    return PipelineOptions(
        checkpoints=str(tmp_path / "checkpoints"),
        history=str(tmp_path / "history"),
        **{"handlers": HANDLERS, "trigger": 0.1, **more},
    )


def submit(settings, *sources, strangers=()):
    """Ask for a job for each source; returns their ids."""

    async def run():
        async with job_system(settings) as system, system.ingesting() as ingestion:
            made = [
                (await ingestion.service.submit("user-1", MediaType.AUDIO, source))[0]
                for source in sources
            ]
            broker = await system.pubsub.broker()
            await broker.publish("job-processing", list(strangers))
            while await ingestion.outbox.pending():
                await asyncio.sleep(0.02)
            return [record.job.job_id for record in made]

    return asyncio.run(run())


def views(settings, job_ids):
    """What the projection has made of the jobs."""

    async def run():
        async with Database(settings.database) as database, SqlJobViews(database) as model:
            return [await model.get(job_id) for job_id in job_ids]

    return asyncio.run(run())


def records(settings, job_ids):
    async def run():
        async with job_system(settings) as system:
            return [await system.store.get(job_id) for job_id in job_ids]

    return asyncio.run(run())


def stored(settings, topic):
    async def run():
        async with job_system(settings) as system:
            log = (await system.pubsub.broker()).log
            extent = await log.extent(topic)
            batches = log.read(topic, extent.first, extent.last)
            return [record async for batch in batches for record in batch]

    return asyncio.run(run())


@contextmanager
def running(pipeline):
    failures = []

    def main():
        try:
            pipeline.run()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    try:
        yield
    finally:
        pipeline.stop()
        thread.join(90)
    assert not thread.is_alive()
    assert not failures


def wait_for(condition, within=90.0):
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, "took too long"
        time.sleep(0.2)


def all_ended(settings, job_ids):
    return lambda: all(r.job.stage.terminal for r in records(settings, job_ids))


def test_jobs_go_through_all_stages_each_ending_as_it_should(spark, settings, tmp_path):
    CALLS.prepare(tmp_path)
    stranger = Draft.of(b"no job", {"stage": "Queued", "mediaType": "audio"}, message_id="s-1")
    jobs = submit(
        settings,
        *(["good.wav"] * 8),
        "bad.wav",
        "shaky.wav",
        "busy.wav",
        "slow.wav",
        strangers=[stranger],
    )
    pipeline = Pipeline(spark, settings, options(tmp_path))
    with running(pipeline):
        wait_for(all_ended(settings, jobs))
        wait_for(lambda: all(v and v.stage.terminal for v in views(settings, jobs)))
    found = records(settings, jobs)
    assert [r.job.stage for r in found[:8]] == [JobStage.TRANSCRIPT_COMPLETE] * 8
    assert [(r.job.stage.value, r.reason, r.attempts) for r in found[8:]] == [
        ("Failed", "malformed", 1),
        ("TranscriptComplete", None, 0),
        ("Failed", "busy", 3),
        ("Failed", "time-limit", 3),
    ]
    assert [v.stage for v in views(settings, jobs)] == [r.job.stage for r in found]
    assert all(v.duration == 2.5 for v in views(settings, jobs)[:8])
    dead = {
        record.attributes.get("jobId", "none") for record in stored(settings, "job-processing-dead")
    }
    assert dead == {"none", jobs[10], jobs[11]}
    ids = Counter(record.message_id for record in stored(settings, "job-events"))
    assert set(ids.values()) == {1}
    assert len(ids) == 9 * 3 + 3 * 2
    # Each good job was handled once a stage.
    for job_id in jobs[:8]:
        assert CALLS.of(tmp_path, job_id) == ["metadata", "transcription"]
    history = spark.read.parquet(str(tmp_path / "history"))
    assert history.count() == len(ids)
    reasons = {row.job_id: row.reason for row in history.where("reason IS NOT NULL").collect()}
    assert reasons == {jobs[8]: "malformed", jobs[10]: "busy", jobs[11]: "time-limit"}


def test_a_backfill_works_through_what_is_there_and_ends(spark, settings, tmp_path):
    CALLS.prepare(tmp_path)
    jobs = submit(settings, *(["good.wav"] * 5))
    Pipeline(spark, settings, options(tmp_path)).backfill()
    assert {r.job.stage for r in records(settings, jobs)} == {JobStage.TRANSCRIPT_COMPLETE}
    assert {v.stage for v in views(settings, jobs)} == {JobStage.TRANSCRIPT_COMPLETE}
    # Again there is nothing left to do.
    Pipeline(spark, settings, options(tmp_path)).backfill()
    assert [len(CALLS.of(tmp_path, job_id)) for job_id in jobs] == [2] * 5


def test_a_checkpoint_lost_repeats_no_work_and_says_nothing_twice(spark, settings, tmp_path):
    CALLS.prepare(tmp_path)
    jobs = submit(settings, *(["good.wav"] * 4))
    Pipeline(spark, settings, options(tmp_path)).backfill()
    before = len(stored(settings, "job-events"))
    again = PipelineOptions(checkpoints=str(tmp_path / "other"), history=None, handlers=HANDLERS)
    Pipeline(spark, settings, again).backfill()
    assert len(stored(settings, "job-events")) == before
    assert [len(CALLS.of(tmp_path, job_id)) for job_id in jobs] == [2] * 4


def test_a_job_that_kills_its_worker_is_given_up_and_the_others_complete(spark, settings, tmp_path):
    CALLS.prepare(tmp_path)
    jobs = submit(settings, "good.wav", "deadly.wav", "good.wav")
    with running(Pipeline(spark, settings, options(tmp_path, stages=("metadata",)))):
        wait_for(lambda: all(r.job.stage is not JobStage.QUEUED for r in records(settings, jobs)))
    good, deadly, other = records(settings, jobs)
    assert {good.job.stage, other.job.stage} == {JobStage.METADATA_READY}
    assert (deadly.job.stage, deadly.reason) == (JobStage.FAILED, "gave-up")


def test_a_driver_killed_in_the_middle_of_a_batch_loses_and_doubles_nothing(settings, tmp_path):
    CALLS.prepare(tmp_path)
    jobs = submit(settings, *(["slowish.wav"] * 6))
    command = [
        *(sys.executable, "-c", "from penstock.cli.main import main; main()", "pipeline"),
        *("run", "--master", "local[2]", "--url", settings.url),
        *("--database", settings.database, "--checkpoints", str(tmp_path / "checkpoints")),
        *("--handlers", HANDLERS, "--trigger", "0.1"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start():
        return subprocess.Popen(
            command,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    first = start()
    try:
        wait_for(lambda: any(CALLS.of(tmp_path, job_id) for job_id in jobs))
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    second = start()
    try:
        wait_for(all_ended(settings, jobs), within=120)
        wait_for(lambda: all(v and v.stage.terminal for v in views(settings, jobs)))
    finally:
        second.terminate()
        assert second.wait(60) == 0
    assert {r.job.stage for r in records(settings, jobs)} == {JobStage.TRANSCRIPT_COMPLETE}
    events = Counter(record.message_id for record in stored(settings, "job-events"))
    assert len(events) == 18 and set(events.values()) == {1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"stages": ("laundry",)},
        {"stages": ()},
        {"batch": 0},
    ],
)
def test_a_wrong_option_is_refused_before_anything_starts(tmp_path, wrong):
    with pytest.raises(InvalidArgumentError):
        options(tmp_path, **wrong)


def test_handlers_that_are_not_there_are_refused_before_anything_starts(tmp_path, settings):
    with pytest.raises(InvalidArgumentError, match="module:mapping"):
        Pipeline(None, settings, options(tmp_path, handlers="no.such:thing"))


def test_a_broker_in_memory_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(InvalidArgumentError, match="local://DIR"):
        Pipeline(None, load_settings(environ={}), options(tmp_path))
