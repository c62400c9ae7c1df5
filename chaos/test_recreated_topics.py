"""The topics of the jobs are deleted and made again between two runs of the pipeline on Spark, and
are longer by the second than its checkpoints had come: no job is left out."""

import asyncio
import gc

import pytest
from tests.support.spark_handlers import CALLS
from tests.support.spark_jobs import PIPELINE, job_settings, records, submit, views

from penstock import PubSub
from penstock.jobs import JobStage
from penstock.spark import session
from penstock.spark.jobs.history import read_history
from penstock.spark.jobs.pipeline import PipelineOptions, SparkPipeline

pytestmark = [
    pytest.mark.timeout(900),
    # Of PySpark: what it opens to its JVM it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def collected():
    """So that it is said here, and not when all has ended."""
    yield
    gc.collect()


@pytest.fixture
def spark():
    made = session("recreated", "local[2]")
    yield made
    made.stop()


async def delete_topics(settings):
    async with PubSub(settings.url) as pubsub:
        admin = (await pubsub.broker()).admin
        for topic in (*settings.topics.work, settings.topics.events):
            await admin.delete_topic(topic)


def test_jobs_of_topics_that_were_made_again_are_all_done(spark, tmp_path):
    CALLS.prepare(tmp_path)
    history = str(tmp_path / "history")
    checkpoints = str(tmp_path / "checkpoints")
    options = PipelineOptions(checkpoints=checkpoints, history=history, pipeline=PIPELINE)
    with job_settings(tmp_path) as settings:
        jobs = submit(settings, *(["good.wav"] * 3))
        SparkPipeline(spark, settings, options).backfill()
        asyncio.run(delete_topics(settings))
        jobs += submit(settings, *(["good.wav"] * 10))
        SparkPipeline(spark, settings, options).backfill()
        done = {record.job.stage for record in records(settings, jobs)}
        shown = {view.stage for view in views(settings, jobs)}
    found = read_history(spark, history).groupBy("source").count().collect()
    assert done == shown == {JobStage.TRANSCRIPT_COMPLETE}
    assert sorted(row["count"] for row in found) == [9, 30]
    assert [len(CALLS.of(tmp_path, job_id)) for job_id in jobs] == [2] * 13
