"""The pipeline of the jobs, kept running, beside the asyncio worker: jobs a second from the request
to the read model and what a single job takes, with handlers that do nothing; and what cores and
executors add where handlers compute."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sqlalchemy import func, select

from benchmarks.measure import Row, table
from benchmarks.processes import spent
from penstock.brokers.nats.local.folder import LocalServer
from penstock.jobs import (
    MEDIA,
    AudioInfo,
    Done,
    JobSettings,
    JobSystem,
    MediaType,
    Outcome,
    ProcessingJob,
    Segment,
    Text,
    job_system,
    load_settings,
)
from penstock.jobs.service import MAX_WISHES, JobService, JobWish
from penstock.jobs.tools import plain_tools
from penstock.jobs.views.sql import SqlJobViews, sql_views

WORKER = "asyncio worker, one process"
BOTH_CORES = "local[2]"
PLACES = (WORKER, "local[1]", BOTH_CORES, "local-cluster[2,1,1024]")
BUSY_PLACES = ("local[1]", "local[2]", "local-cluster[1,1,1024]", "local-cluster[2,1,1024]")
# What a handler that computes uses of a core. A job costs two milliseconds beside that, which all
# cores share, and a batch some tenths of a second: less would say what those add.
BUSY_SECONDS = 0.1
# What is promised: jobs a second on both cores, as often as the worker does; from one executor to
# two.
RATE, RATIO, GROWTH = 1_500, 1.5, 1.7


@dataclass(frozen=True)
class Load:
    """`jobs` at a time, after `warm_up` others. `single`: jobs that come alone, where that is
    asked for. `partition`: how many a task works on, at most. `trigger`: seconds between batches,
    each of which costs some tenths of a second of a core."""

    jobs: int
    warm_up: int
    single: int
    partition: int
    trigger: float


LOADS = {
    # As docs/pipeline.md says: large where handlers are quick, and a small trigger where a single
    # job should not wait.
    "IDLE": Load(20_000, 1_000, 100, 2_500, 0.1),
    # So many that what comes before and after the work, some ten seconds whatever there is to work
    # with, hides little of it; and tasks of some seconds, so that none is left alone for long.
    "BUSY": Load(800, 40, 0, 25, 0.5),
}


async def _look(_: ProcessingJob) -> Outcome:
    return Done(info=AudioInfo(duration=2.5, size=1000, container="wav", codec="pcm_s16le"))


async def _listen(_: ProcessingJob) -> Outcome:
    return Done(text=Text(segments=[Segment(0.0, 2.5, "hello there")], language="en"))


async def _compute(job: ProcessingJob) -> Outcome:
    until = time.thread_time() + BUSY_SECONDS
    while time.thread_time() < until:
        pass
    return await _listen(job)


_metadata, _transcription = (
    replace(stage, handler=handler)
    for stage, handler in zip(MEDIA.stages, (_look, _listen), strict=True)
)
IDLE = replace(MEDIA, stages=(_metadata, _transcription), tools=plain_tools)
BUSY = replace(IDLE, stages=(_metadata, replace(_transcription, handler=_compute)))


async def _until_done(system: JobSystem, total: int, last: str, look: float) -> None:
    """Until the read model has so many jobs at their end. The last of them is looked for, because
    to count them all again and again costs more than what is measured."""
    end = sql_views.c.stage == "TranscriptComplete"
    while True:
        async with system.database.transaction(reading=True) as connection:
            query = select(func.count()).where(end)
            is_there = await connection.scalar(query.where(sql_views.c.job_id == last))
            if is_there and (await connection.scalar(query) or 0) >= total:
                return
        await asyncio.sleep(look)


async def _through(system: JobSystem, count: int, before: int) -> float:
    """Ask for jobs, and wait until the read model has them at their end, after those that were
    there `before`; the seconds."""
    service = JobService(system.store)
    wish = JobWish(media_type=MediaType.AUDIO, source="a.wav")
    last = ""
    began = time.perf_counter()
    for at in range(0, count, MAX_WISHES):
        asked = await service.submit_many("bench", [wish] * min(MAX_WISHES, count - at))
        last = next(answer[0].job.job_id for answer in reversed(asked) if isinstance(answer, tuple))
    await _until_done(system, before + count, last, 0.1)
    return time.perf_counter() - began


async def _one_by_one(system: JobSystem, count: int, before: int) -> list[float]:
    """The seconds of each."""
    took = []
    for number in range(count):
        began = time.perf_counter()
        record, _ = await JobService(system.store).submit("bench", MediaType.AUDIO, "a.wav")
        # Whoever reads a SQLite file keeps commits waiting, so not all the time.
        await _until_done(system, before + number + 1, record.job.job_id, 0.02)
        took.append(time.perf_counter() - began)
    return took


async def _measured(settings: JobSettings, folder: Path, load: Load, *, working: bool) -> Figures:
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(job_system(settings))
        # Spark makes its tables when it comes to it, which may be after they are asked.
        await stack.enter_async_context(SqlJobViews(system.database, pipeline=settings.pipeline))
        if working:
            await stack.enter_async_context(system.working())
            # Which keeps the read model as well; on Spark that is one of the queries.
            await stack.enter_async_context(system.ingesting())
        await _through(system, load.warm_up, 0)
        alone = await _one_by_one(system, load.single, load.warm_up)
        used = spent(str(folder))
        took = await _through(system, load.jobs, load.warm_up + load.single)
        used = spent(str(folder)) - used
    return Figures(took / load.jobs, used / load.jobs, alone)


@dataclass(frozen=True)
class Figures:
    """`seconds` and `cpu`: of a job, when there are many. `single`: the seconds of each that came
    alone."""

    seconds: float
    cpu: float
    single: list[float]

    @property
    def rate(self) -> float:
        return 1 / self.seconds


def _settings(folder: Path, pipeline: str) -> JobSettings:
    wide = {"concurrency": 64}
    return load_settings(
        environ={},
        pipeline=pipeline,
        url=f"local://{folder}/broker",
        database=f"sqlite:///{folder}/jobs.db",
        stages={"metadata": wide, "transcription": wide},
        api={"views": "sql"},
    )


@contextmanager
def _spark(master: str, settings: JobSettings, folder: Path, name: str) -> Iterator[None]:
    """The pipeline, running in a thread."""
    from penstock.spark import session
    from penstock.spark.jobs.jvm import driver_config
    from penstock.spark.jobs.pipeline import PipelineOptions, SparkPipeline

    spark = session("bench", master, config=driver_config(), log_level="ERROR")
    options = PipelineOptions(
        checkpoints=str(folder / "checkpoints"),
        pipeline=_where(name),
        trigger=LOADS[name].trigger,
        batch=20_000,
        partition=LOADS[name].partition,
    )
    running = SparkPipeline(spark, settings, options)
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        yield
    finally:
        running.stop()
        thread.join()
        spark.stop()


def _where(name: str) -> str:
    return f"benchmarks.pipeline:{name}"


def measure(place: str, name: str, single: int) -> None:
    """In a process of its own, because a process has one Spark: prints its `Figures`."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as made, ExitStack() as stack:
        folder = Path(made)
        settings = _settings(folder, _where(name))
        LocalServer(folder / "broker").keep()
        stack.callback(LocalServer(folder / "broker").stop)
        working = place == WORKER
        if not working:
            stack.enter_context(_spark(place, settings, folder, name))
        load = replace(LOADS[name], single=single)
        figures = asyncio.run(_measured(settings, folder, load, working=working))
        print(json.dumps(asdict(figures)), flush=True)


async def _figures(place: str, name: str) -> Figures:
    # One that comes alone takes as long with one core as with two, and elsewhere.
    single = LOADS[name].single if place in (WORKER, BOTH_CORES) else 0
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "benchmarks.pipeline", place, name, str(single)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        timeout=900,
    )
    found = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    if not found:
        raise RuntimeError(ran.stderr[-2000:])
    return Figures(**json.loads(found[-1]))


async def main() -> bool:
    idle = {place: await _figures(place, "IDLE") for place in PLACES}
    rates = [_rate_row(place, one, idle[WORKER]) for place, one in idle.items()]
    table(
        f"{LOADS['IDLE'].jobs:,} jobs through two stages to the read model, no-op handlers", rates
    )
    alone = {place: one.single for place, one in idle.items() if one.single}
    table(
        "A single job, when there is no other",
        [
            Row(
                what=place,
                value=f"{statistics.median(took) * 1000:,.0f} ms",
                spread=f"p99 {statistics.quantiles(took, n=100)[98] * 1000:,.0f} ms",
            )
            for place, took in alone.items()
        ],
    )
    busy = {place: await _figures(place, "BUSY") for place in BUSY_PLACES}
    growing = [_growth_row(place, busy) for place in busy]
    table(
        f"{LOADS['BUSY'].jobs:,} jobs whose handlers use {BUSY_SECONDS * 1000:g} ms of a core",
        growing,
    )
    return all(row.kept is not False for row in (*rates, *growing))


def _rate_row(place: str, one: Figures, worker: Figures) -> Row:
    ratio = one.rate / worker.rate
    row = Row(
        what=place,
        value=f"{one.rate:,.0f} jobs/s",
        spread=f"{ratio:.2f} x the worker, {one.cpu * 1000:.2f} ms of CPU each",
    )
    if place != BOTH_CORES:
        return row
    kept = one.rate >= RATE and ratio >= RATIO
    return replace(row, promise=f"at least {RATE:,} and {RATIO:g} x", kept=kept)


def _growth_row(place: str, busy: dict[str, Figures]) -> Row:
    """What the second core, or executor, adds to the first."""
    row = Row(what=place, value=f"{busy[place].rate:,.1f} jobs/s")
    first = place.replace("[2", "[1")
    if first == place:
        return row
    ratio = busy[place].rate / busy[first].rate
    row = replace(row, spread=f"{ratio:.2f} x {first}")
    if not place.startswith("local-cluster"):
        return row
    return replace(row, promise=f"at least {GROWTH:g} x", kept=ratio >= GROWTH)


if __name__ == "__main__":
    measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))
