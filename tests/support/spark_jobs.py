"""Jobs for the pipeline on Spark: asking for them, and looking at what became of them."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.brokers.nats.local.folder import LocalServer
from penstock.jobs import JobSettings, MediaType, job_system, load_settings
from penstock.jobs.views.sql import SqlJobViews
from penstock.transactional import Database

HANDLERS = "tests.support.spark_handlers:STAGES"


@contextmanager
def job_settings(folder: Path) -> Iterator[JobSettings]:
    """Settings for a broker and a database in a folder; the broker runs meanwhile."""
    quick = {"minimum_backoff": 0, "maximum_backoff": 0, "max_attempts": 3}
    found = load_settings(
        environ={},
        url=f"local://{folder}/broker",
        database=f"sqlite:///{folder}/jobs.db",
        stages={"metadata": quick, "transcription": quick},
        api={"views": "sql"},
    )
    LocalServer(folder / "broker").keep()
    try:
        yield found
    finally:
        LocalServer(folder / "broker").stop()


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


def retry_by_hand(settings, job_id):
    async def run():
        async with job_system(settings) as system, system.ingesting() as ingestion:
            await ingestion.service.retry(job_id)
            while await ingestion.outbox.pending():
                await asyncio.sleep(0.02)

    asyncio.run(run())


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


def wait_for(condition, within=240.0):
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, "took too long"
        time.sleep(0.2)


def all_ended(settings, job_ids):
    return lambda: all(r.job.stage.terminal for r in records(settings, job_ids))
