"""The stages of the jobs on Spark: the same result as by the asyncio worker, whatever dies."""

import asyncio
import threading
import time
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from penstock import Draft, PubSub
from penstock.errors import InvalidArgumentError
from penstock.jobs import MEDIA, JobStage, load_settings
from penstock.spark.jobs.history import read_history
from penstock.spark.jobs.pipeline import Part, PipelineOptions, SparkPipeline
from tests.support.spark_handlers import CALLS
from tests.support.spark_jobs import (
    PIPELINE,
    all_ended,
    job_settings,
    records,
    retry_by_hand,
    stored,
    submit,
    views,
    wait_for,
)

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture
def settings(tmp_path):
    with job_settings(tmp_path) as found:
        yield found


def options(tmp_path, **more):
    usual = {"history": str(tmp_path / "history"), "pipeline": PIPELINE, "trigger": 0.1}
    return PipelineOptions(checkpoints=str(tmp_path / "checkpoints"), **{**usual, **more})


def metadata_alone(tmp_path):
    return options(tmp_path, stages=("metadata",), history=None)


def told(metric, **labels):
    return REGISTRY.get_sample_value(f"penstock_pipeline_{metric}", labels)


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
    pipeline = SparkPipeline(spark, settings, options(tmp_path))
    queries = ("metadata", "transcription", "projection")
    repeated = told("repeated_total", query="projection") or 0
    with running(pipeline):
        wait_for(all_ended(settings, jobs))
        wait_for(lambda: all(v and MEDIA.is_end(v.stage) for v in views(settings, jobs)))
        wait_for(lambda: len(stored(settings, "job-processing-dead")) == 3)
        wait_for(lambda: all(told("behind", query=name) == 0 for name in queries))
    assert [told("behind_seconds", query=name) for name in queries] == [0, 0, 0]
    assert told("messages_total", query="projection") >= 9 * 3 + 3 * 2
    assert told("phase_seconds_total", query="projection", phase="addBatch") > 0
    assert told("repeated_total", query="projection") == repeated
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
    # What does not decode was put back as the settings say before it was given up.
    strange = [r.message_id for r in stored(settings, "job-processing") if r.data == b"no job"]
    assert strange == ["s-1", "s-1.again-1", "s-1.again-2"]
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


def test_a_job_retried_by_hand_that_fails_again_is_tried_again(spark, settings, tmp_path):
    """A person and the runner both send the job's message again; neither may hide the other's."""
    CALLS.prepare(tmp_path)
    [job] = submit(settings, "stubborn.wav")
    retry_by_hand(settings, job)
    with running(SparkPipeline(spark, settings, metadata_alone(tmp_path))):
        wait_for(lambda: records(settings, [job])[0].job.stage is not JobStage.QUEUED, within=40)
    assert records(settings, [job])[0].job.stage is JobStage.METADATA_READY


def test_a_backfill_works_through_what_is_there_and_ends(spark, settings, tmp_path):
    CALLS.prepare(tmp_path)
    jobs = submit(settings, *(["good.wav"] * 5))
    SparkPipeline(spark, settings, options(tmp_path)).backfill()
    assert {r.job.stage for r in records(settings, jobs)} == {JobStage.TRANSCRIPT_COMPLETE}
    assert {v.stage for v in views(settings, jobs)} == {JobStage.TRANSCRIPT_COMPLETE}
    # Again there is nothing left to do.
    SparkPipeline(spark, settings, options(tmp_path)).backfill()
    assert [len(CALLS.of(tmp_path, job_id)) for job_id in jobs] == [2] * 5


def test_a_backfill_of_some_jobs_leaves_the_others_the_checkpoints_and_the_history(
    spark, settings, tmp_path
):
    CALLS.prepare(tmp_path)
    early = submit(settings, "good.wav", "good.wav")
    time.sleep(0.05)
    since = datetime.now(UTC)
    late = submit(settings, "good.wav")
    made = SparkPipeline(spark, settings, options(tmp_path))
    made.backfill(Part(jobs=[early[1]]))
    made.backfill(Part(since=since))
    done = {r.job.job_id for r in records(settings, early + late) if MEDIA.is_end(r.job.stage)}
    assert done == {early[1], *late}
    assert not (tmp_path / "history").exists()
    assert not (tmp_path / "checkpoints").exists()
    made.backfill()
    assert all(MEDIA.is_end(r.job.stage) for r in records(settings, early))
    assert read_history(spark, str(tmp_path / "history")).count() == 9
    assert [len(CALLS.of(tmp_path, job_id)) for job_id in early + late] == [2] * 3


async def topics(settings):
    async with PubSub(settings.url) as pubsub:
        return await pubsub.topics()


def test_the_topics_are_made_by_whoever_is_first(settings, tmp_path):
    """The first command of a new place may be this one."""

    nowhere = SimpleNamespace(conf={"spark.master": "local[2]"})
    ended = SimpleNamespace(awaitTermination=lambda _: True, lastProgress=None)
    there = []

    class Watched(SparkPipeline):
        def start(self, name, *, once=None):
            there.append(asyncio.run(topics(settings)))
            return ended

    Watched(nowhere, settings, options(tmp_path)).backfill()
    assert len(there) == 3
    assert {"job-processing", "job-events"} <= set(there[0])


@pytest.mark.parametrize(
    ("part", "told"),
    [({"jobs": ["1 OR true"]}, "no job id"), ({"since": datetime(2026, 1, 1)}, "time zone")],  # noqa: DTZ001
)
def test_a_part_that_cannot_be_is_refused(part, told):
    with pytest.raises(InvalidArgumentError, match=told):
        Part(**part)


def test_a_checkpoint_lost_repeats_no_work_and_says_nothing_twice(spark, settings, tmp_path):
    CALLS.prepare(tmp_path)
    jobs = submit(settings, *(["good.wav"] * 4))
    SparkPipeline(spark, settings, options(tmp_path)).backfill()
    before = len(stored(settings, "job-events"))
    history = str(tmp_path / "history")
    again = PipelineOptions(checkpoints=str(tmp_path / "other"), history=history, pipeline=PIPELINE)
    repeated = told("repeated_total", query="projection") or 0
    SparkPipeline(spark, settings, again).backfill()
    assert told("repeated_total", query="projection") == repeated + before
    assert len(stored(settings, "job-events")) == before
    assert read_history(spark, history).count() == before
    assert [len(CALLS.of(tmp_path, job_id)) for job_id in jobs] == [2] * 4


def test_a_job_that_kills_its_worker_is_given_up_and_the_others_complete(spark, settings, tmp_path):
    CALLS.prepare(tmp_path)
    jobs = submit(settings, "good.wav", "deadly.wav", "good.wav")
    with running(SparkPipeline(spark, settings, metadata_alone(tmp_path))):
        wait_for(lambda: all(r.job.stage is not JobStage.QUEUED for r in records(settings, jobs)))
    good, deadly, other = records(settings, jobs)
    assert {good.job.stage, other.job.stage} == {JobStage.METADATA_READY}
    assert (deadly.job.stage, deadly.reason) == (JobStage.FAILED, "gave-up")


@pytest.mark.parametrize(
    "wrong",
    [
        {"stages": ("laundry",)},
        {"stages": ()},
        {"batch": 0},
    ],
)
def test_a_wrong_option_is_refused_before_anything_starts(tmp_path, settings, wrong):
    with pytest.raises(InvalidArgumentError):
        SparkPipeline(None, settings, options(tmp_path, **wrong))


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("no.such:thing", "module:NAME"),
        ("tests.support.spark_jobs:submit", "should be a penstock.jobs.Pipeline"),
        ("penstock.jobs:MEDIA", "The settings are for"),
    ],
)
def test_a_pipeline_that_is_not_there_is_refused_before_anything_starts(
    tmp_path, settings, reference, told
):
    with pytest.raises(InvalidArgumentError, match=told):
        SparkPipeline(None, settings, options(tmp_path, pipeline=reference))


def test_a_broker_in_memory_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(InvalidArgumentError, match="local:///DIR"):
        SparkPipeline(None, load_settings(environ={}), options(tmp_path))
