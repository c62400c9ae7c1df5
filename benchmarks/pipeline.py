"""The pipeline of the jobs on Spark with handlers that do nothing: jobs a second, end to end, and
how that grows with the cores it gets."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

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
from penstock.jobs.tools import plain_tools

JOBS = 1500
WARM_UP = 100
REPEATS = 3
_REFERENCE = "benchmarks.pipeline:PIPELINE"
MASTERS = ("local[1]", "local[2]", "local-cluster[2,1,1024]")


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


async def _submit(settings: JobSettings, count: int) -> None:
    async with job_system(settings) as system, system.ingesting() as ingestion:
        submit = ingestion.service.submit
        await asyncio.gather(*(submit("bench", MediaType.AUDIO, "a.wav") for _ in range(count)))
        while await ingestion.outbox.pending():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def measure(master: str) -> None:
    """In a process of its own, because a process has one Spark: prints seconds a job."""
    from penstock.spark import session
    from penstock.spark.jobs.pipeline import PipelineOptions, SparkPipeline

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        wide = {"concurrency": 64}
        settings = load_settings(
            environ={},
            pipeline=_REFERENCE,
            url=f"local://{folder}/broker",
            database=f"sqlite:///{folder}/jobs.db",
            stages={"metadata": wide, "transcription": wide},
        )
        LocalServer(folder / "broker").keep()
        spark = session("bench", master, log_level="ERROR")
        try:
            options = PipelineOptions(
                checkpoints=str(folder / "checkpoints"),
                pipeline=_REFERENCE,
                batch=10_000,
                partition=250,
            )
            for count in (WARM_UP, *([JOBS] * REPEATS)):
                asyncio.run(_submit(settings, count))
                began = time.perf_counter()
                SparkPipeline(spark, settings, options).backfill()
                if count == JOBS:
                    print((time.perf_counter() - began) / count, flush=True)
        finally:
            spark.stop()
            LocalServer(folder / "broker").stop()


async def main() -> bool:
    rows = []
    first: float | None = None
    for master in MASTERS:
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "benchmarks.pipeline", master],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            timeout=600,
        )
        seconds = sorted(float(line) for line in ran.stdout.splitlines() if line[:1].isdigit())
        if not seconds:
            raise RuntimeError(ran.stderr[-2000:])
        middle = statistics.median(seconds)
        first = first or middle
        rows.append(
            Row(
                what=f"{master}",
                value=f"{1 / middle:,.0f} jobs/s",
                spread=f"{1 / seconds[-1]:,.0f} to {1 / seconds[0]:,.0f}, {first / middle:.2f} x",
            )
        )
    table(f"The pipeline on Spark, {JOBS} jobs through three queries, no-op handlers", rows)
    return True


if __name__ == "__main__":
    measure(sys.argv[1])
