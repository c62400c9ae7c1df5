"""Jobs on Google Pub/Sub, over an emulator that keeps everything on disk: the API takes them in, a
worker does one stage and Spark the other, and what fails is a dead letter."""

import asyncio
import threading

import pytest

from penstock import Draft, connect
from penstock.errors import InvalidArgumentError
from penstock.jobs import MEDIA, JobStage, load_settings
from penstock.spark.jobs.pipeline import PipelineOptions, SparkPipeline, queries_of
from penstock.testing.emulator import EmulatorInThread
from tests.support.api_scenes import served
from tests.support.job_scenes import Place, jobs_on
from tests.support.spark_handlers import CALLS
from tests.support.spark_jobs import PIPELINE, records, views, wait_for

pytestmark = [pytest.mark.timeout(600)]

_QUICK = {"minimum_backoff": 0, "maximum_backoff": 0}
SETTINGS = {
    "pipeline": PIPELINE,
    "stages": {"metadata": _QUICK, "transcription": _QUICK},
    "api": {"views": "sql", "port": 0},
}
STRANGER = Draft.of(b"no job", {"stage": "MetadataReady", "mediaType": "audio"})


@pytest.fixture
def place(tmp_path):
    kept = {"broker": f"local://{tmp_path}/data", "folder": tmp_path / "data" / "emulator"}
    with EmulatorInThread(project="shop", **kept) as emulator:
        url = f"pubsub://shop?emulator={emulator.address}"
        yield Place(url, f"sqlite:///{tmp_path}/jobs.db")


async def taken_in(place, *sources):
    """Ask the API for a job for each, and let a worker do the first stage of all."""
    async with (
        jobs_on(place, **SETTINGS) as scene,
        served(scene) as client,
        scene.system.working("metadata"),
    ):
        broker = await scene.system.pubsub.broker()
        await broker.publish("job-processing", [STRANGER])
        jobs = []
        for source in sources:
            answer = await client.post("/jobs", json={"mediaType": "audio", "source": source})
            jobs.append(answer.json()["jobId"])
        for job_id in jobs:
            await scene.view_at(job_id, JobStage.METADATA_READY, JobStage.FAILED)
        behind = (await client.get("/status")).json()["readModel"]
        assert behind == {"jobs": len(jobs), "eventsBehind": None, "secondsBehind": None}
        return jobs


def stored(folder, topic):
    """What the broker behind the emulator holds."""

    async def read():
        broker = await connect(f"local://{folder}/data")
        extent = await broker.log.extent(topic)
        batches = broker.log.read(topic, extent.first, extent.last)
        found = [record async for batch in batches for record in batch]
        await broker.aclose()
        return found

    return asyncio.run(read())


def test_jobs_flow_from_the_api_through_a_worker_and_spark(spark, place, tmp_path):
    CALLS.prepare(tmp_path)
    jobs = asyncio.run(taken_in(place, "good.wav", "shaky.wav", "good.wav", "bad.wav", "busy.wav"))
    settings = load_settings(environ={}, url=place.url, database=place.database, **SETTINGS)
    options = PipelineOptions(
        checkpoints=str(tmp_path / "checkpoints"),
        pipeline=PIPELINE,
        stages=("transcription", "projection"),
        trigger=0.1,
    )
    pipeline = SparkPipeline(spark, settings, options)
    running = threading.Thread(target=pipeline.run)
    running.start()
    try:
        # Events that one query causes are what the other makes the read model of.
        wait_for(lambda: all(MEDIA.is_end(view.stage) for view in views(settings, jobs)))
        wait_for(lambda: len(stored(tmp_path, "job-processing-dead")) == 2)
    finally:
        pipeline.stop()
        running.join(90)
    assert not running.is_alive()
    complete, failed = JobStage.TRANSCRIPT_COMPLETE, JobStage.FAILED
    found = records(settings, jobs)
    assert [r.job.stage for r in found] == [complete, complete, complete, failed, failed]
    assert [r.reason for r in found] == [None, None, None, "malformed", "busy"]
    assert [view.stage for view in views(settings, jobs)] == [r.job.stage for r in found]
    # The filters sent each message to one stage: nothing was handled twice, but what was retried.
    calls = [CALLS.of(tmp_path, job_id) for job_id in jobs]
    both = ["metadata", "transcription"]
    assert calls == [both, ["metadata", *both], both, ["metadata"], ["metadata"] * 3]
    dead = {r.attributes.get("jobId", "none") for r in stored(tmp_path, "job-processing-dead")}
    assert dead == {"none", jobs[4]}


def test_a_history_is_refused_where_there_is_no_log(place, tmp_path):
    settings = load_settings(environ={}, url=place.url, database=place.database, **SETTINGS)
    options = PipelineOptions(
        checkpoints=str(tmp_path / "checkpoints"),
        history=str(tmp_path / "history"),
        pipeline=PIPELINE,
    )
    with pytest.raises(InvalidArgumentError, match=r"pubsub:// keeps none"):
        queries_of(settings, options)
