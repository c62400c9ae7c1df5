"""The pipeline of the jobs with handlers that do nothing, kept running: jobs a second from the
request to the read model, beside the asyncio worker, and how that grows with the cores it gets."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy import func, select

from benchmarks.measure import Row, table
from penstock.brokers.nats.local.folder import LocalServer
from penstock.jobs import (
    MEDIA,
    AudioInfo,
    Done,
    JobSettings,
    MediaType,
    Outcome,
    ProcessingJob,
    Segment,
    Text,
    job_system,
    load_settings,
)
from penstock.jobs.service import JobService
from penstock.jobs.tools import plain_tools
from penstock.jobs.views.sql import sql_views

JOBS = 20_000
WARM_UP = 500
_REFERENCE = "benchmarks.pipeline:PIPELINE"
WORKER = "asyncio worker, one process"
PLACES = (WORKER, "local[1]", "local[2]", "local-cluster[2,1,1024]")


async def _look(_: ProcessingJob) -> Outcome:
    return Done(info=AudioInfo(duration=2.5, size=1000, container="wav", codec="pcm_s16le"))


async def _listen(_: ProcessingJob) -> Outcome:
    return Done(text=Text(segments=[Segment(0.0, 2.5, "hello there")], language="en"))


_metadata, _transcription = MEDIA.stages
PIPELINE = replace(
    MEDIA,
    stages=(replace(_metadata, handler=_look), replace(_transcription, handler=_listen)),
    tools=plain_tools,
)


async def _through(settings: JobSettings, count: int, total: int, *, working: bool) -> float:
    """Ask for jobs, and wait until the read model has all `total` at their end; the seconds."""
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(job_system(settings))
        if working:
            await stack.enter_async_context(system.working())
            # Which keeps the read model as well; on Spark that is one of the queries.
            await stack.enter_async_context(system.ingesting())
        submit = JobService(system.store).submit
        began = time.perf_counter()
        for at in range(0, count, 500):
            some = range(min(500, count - at))
            await asyncio.gather(*(submit("bench", MediaType.AUDIO, "a.wav") for _ in some))
        done = select(func.count()).where(sql_views.c.stage == "TranscriptComplete")
        while True:
            async with system.database.transaction(reading=True) as connection:
                if (await connection.scalar(done) or 0) >= total:
                    return time.perf_counter() - began
            await asyncio.sleep(0.1)


def _settings(folder: Path) -> JobSettings:
    wide = {"concurrency": 64}
    return load_settings(
        environ={},
        pipeline=_REFERENCE,
        url=f"local://{folder}/broker",
        database=f"sqlite:///{folder}/jobs.db",
        stages={"metadata": wide, "transcription": wide},
        api={"views": "sql"},
    )


@contextmanager
def _spark(master: str, settings: JobSettings, folder: Path) -> Iterator[None]:
    """The pipeline, running in a thread."""
    from penstock.spark import session
    from penstock.spark.jobs.jvm import driver_config
    from penstock.spark.jobs.pipeline import PipelineOptions, SparkPipeline

    spark = session("bench", master, config=driver_config(), log_level="ERROR")
    options = PipelineOptions(
        checkpoints=str(folder / "checkpoints"),
        pipeline=_REFERENCE,
        trigger=0.1,
        batch=4000,
        partition=1000,
    )
    pipeline = SparkPipeline(spark, settings, options)
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    try:
        yield
    finally:
        pipeline.stop()
        thread.join()
        spark.stop()


def measure(place: str, count: int) -> None:
    """In a process of its own, because a process has one Spark: prints seconds a job."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        settings = _settings(folder)
        LocalServer(folder / "broker").keep()
        stack.callback(LocalServer(folder / "broker").stop)
        working = place == WORKER
        if not working:
            stack.enter_context(_spark(place, settings, folder))
        asyncio.run(_through(settings, WARM_UP, WARM_UP, working=working))
        took = asyncio.run(_through(settings, count, WARM_UP + count, working=working))
        print(took / count, flush=True)


async def main() -> bool:
    rows = []
    first: float | None = None
    for place in PLACES:
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "benchmarks.pipeline", place],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            timeout=900,
        )
        seconds = [float(line) for line in ran.stdout.splitlines() if line[:1].isdigit()]
        if not seconds:
            raise RuntimeError(ran.stderr[-2000:])
        first = first or seconds[0]
        rows.append(
            Row(
                what=place,
                value=f"{1 / seconds[0]:,.0f} jobs/s",
                spread=f"{first / seconds[0]:.2f} x the worker",
            )
        )
    table(f"{JOBS:,} jobs through two stages to the read model, no-op handlers", rows)
    return True


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else JOBS)
