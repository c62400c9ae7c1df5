"""Pipelines that users declare, on Spark: the same value that the asyncio worker runs."""

import asyncio

import pytest

from penstock.jobs import MediaType, load_settings
from penstock.spark.jobs.pipeline import PipelineOptions, SparkPipeline
from tests.support.api_scenes import served
from tests.support.example_pipelines import EXAMPLES, SAMPLES, shows
from tests.support.job_scenes import Place, jobs_on, until

pytestmark = [pytest.mark.timeout(240)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_pipeline_of_an_example_runs_on_spark_and_shows_on_the_page(spark, tmp_path, name):
    example = EXAMPLES[name]
    place = Place(f"local://{tmp_path}/broker", f"sqlite:///{tmp_path}/jobs.db")
    more = {
        "pipeline": example.pipeline,
        "media": {"root": str(SAMPLES)},
        "api": {"views": "sql", "local_user": "user-1"},
    }
    settings = load_settings(environ={}, url=place.url, database=place.database, **more)
    options = PipelineOptions(
        checkpoints=str(tmp_path / "checkpoints"),
        history=str(tmp_path / "history"),
        pipeline=example.reference,
    )

    async def scenario():
        async with jobs_on(place, **more) as scene, served(scene) as client:
            kind = MediaType(example.media_type)
            record, _ = await scene.ingestion.service.submit("user-1", kind, example.source)
            job_id = record.job.job_id

            async def nothing_left():
                return await scene.ingestion.outbox.pending() == 0

            await until(nothing_left)
            await asyncio.to_thread(SparkPipeline(spark, settings, options).backfill)
            view = await scene.ingestion.views.get(job_id)
            assert view.stage == example.stages[-1]
            await shows(client, example, job_id)

    asyncio.run(scenario())
    history = spark.read.parquet(str(tmp_path / "history"))
    told = [row.stage for row in history.orderBy("sequence").collect()]
    assert told == list(example.stages)
    facts = history.agg(dict.fromkeys(example.facts, "max")).first()
    assert list(facts) == list(example.facts.values())
