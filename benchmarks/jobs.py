"""Jobs: asking for them through the API, and taking them from request to transcript, beside what
the broker and the database alone do; what a job costs; and what doing nothing costs."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sqlalchemy import Engine, event

from benchmarks.job_processes import Apart, ask_for, settings_in
from benchmarks.measure import Figures, Row, interleaved, ratios, table
from penstock import Draft
from penstock.collector import look_rarely
from penstock.jobs import (
    MEDIA,
    AudioInfo,
    Done,
    JobStage,
    JobSystem,
    MediaType,
    Outcome,
    ProcessingJob,
    Segment,
    Stage,
    Text,
    job_system,
)
from penstock.jobs.system import Ingestion
from penstock.web import create_app, serve

JOBS = 600
CLIENTS = 32
REPEATS = 3
APART_JOBS, APART_CLIENTS = 2000, 50
IDLE = 10.0
_INFO = AudioInfo(duration=2.5, size=1000, container="wav", codec="pcm_s16le")
_TEXT = Text(segments=[Segment(0.0, 2.5, "hello there")], language="en")


async def _look(_: ProcessingJob) -> Outcome:
    return Done(info=_INFO)


async def _listen(_: ProcessingJob) -> Outcome:
    return Done(text=_TEXT)


STAGES = (
    Stage(
        name="metadata",
        consumes=JobStage.QUEUED,
        emits=JobStage.METADATA_READY,
        handler=_look,
    ),
    Stage(
        name="transcription",
        consumes=JobStage.METADATA_READY,
        emits=JobStage.TRANSCRIPT_COMPLETE,
        handler=_listen,
    ),
)


@asynccontextmanager
async def _running() -> AsyncIterator[tuple[JobSystem, Ingestion]]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        async with job_system(settings_in(Path(folder))) as system, system.ingesting() as ingestion:
            look_rarely()  # As the commands do.
            yield system, ingestion


class Spent:
    """What jobs cost while it is entered: CPU of this process, statements and transactions."""

    def __init__(self) -> None:
        self._cpu: list[float] = []
        self._told: Counter[str] = Counter()
        self._began = 0.0

    def __enter__(self) -> None:
        self._told.clear()
        event.listen(Engine, "before_cursor_execute", self._tell)
        self._began = time.process_time()

    def __exit__(self, *_: object) -> None:
        self._cpu.append(time.process_time() - self._began)
        event.remove(Engine, "before_cursor_execute", self._tell)

    def _tell(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        self._told["statements"] += 1
        self._told["transactions"] += statement.startswith("BEGIN IMMEDIATE")

    def __str__(self) -> str:
        return (
            f"{min(self._cpu) / JOBS * 1e6:,.0f} µs of CPU, "
            f"{self._told['statements'] / JOBS:.2f} statements, "
            f"{self._told['transactions'] / JOBS:.3f} transactions a job"
        )


class Ways:
    def __init__(self, system: JobSystem, ingestion: Ingestion, address: str) -> None:
        self._system = system
        self._ingestion = ingestion
        self._address = address
        self._runs = 0
        self.asking, self.working = Spent(), Spent()

    async def store_alone(self) -> float:
        """The rows of a job that is asked for, three, written by hand: as many jobs a transaction
        as there are clients, and each synced as ours are."""
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            return await asyncio.to_thread(_write_rows, Path(folder) / "raw.db")

    async def broker_alone(self) -> float:
        """The messages of a job, published to the broker and nothing else: five each."""
        broker = await self._system.pubsub.broker()
        self._runs += 1
        began = time.perf_counter()
        for at in range(0, JOBS, 100):
            drafts = [
                Draft.of(bytes(256), message_id=f"b{self._runs}-{n}")
                for n in range(at * 5, (at + 100) * 5)
            ]
            await broker.publish("bench", drafts)
        return (time.perf_counter() - began) / JOBS

    async def asked_through_the_api(self) -> float:
        began = time.perf_counter()
        with self.asking:
            await ask_for(int(self._address.rpartition(":")[2]), JOBS, CLIENTS)
        return (time.perf_counter() - began) / JOBS

    async def from_request_to_transcript(self) -> float:
        """With handlers that do nothing, what is left is ours."""
        async with AsyncExitStack() as stack:
            for stage in STAGES:
                await stack.enter_async_context(self._system.worker(stage))
            # What earlier ways asked for is not counted.
            await self._quiet()
            watcher = self._ingestion.projection.watch("bench-user")
            began = time.perf_counter()
            submit = self._ingestion.service.submit
            asking = asyncio.gather(
                *(submit("bench-user", MediaType.AUDIO, "a.wav") for _ in range(JOBS))
            )
            done = 0
            with self.working:
                async for view in watcher:
                    done += view is not None and MEDIA.is_end(view.stage)
                    if done == JOBS:
                        break
                await asking
            return (time.perf_counter() - began) / JOBS

    async def _quiet(self) -> None:
        for stage in (JobStage.QUEUED, JobStage.METADATA_READY):
            while (await self._ingestion.views.list(stage=stage, limit=1))[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def _write_rows(path: Path) -> float:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA journal_mode = truncate")
    database.execute("CREATE TABLE jobs (id TEXT PRIMARY KEY, data BLOB)")
    database.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, name TEXT UNIQUE, data BLOB)")
    began = time.perf_counter()
    for at in range(0, JOBS, CLIENTS):
        jobs = range(at, min(at + CLIENTS, JOBS))
        messages = [(f"{n}-{kind}", bytes(256)) for n in jobs for kind in ("job", "event")]
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO jobs VALUES (?, ?)", [(f"{n}", bytes(256)) for n in jobs])
        database.executemany("INSERT INTO outbox (name, data) VALUES (?, ?)", messages)
        database.execute("COMMIT")
    took = time.perf_counter() - began
    database.close()
    return took / JOBS


async def _idle() -> float:
    """The part of a core that it takes to do nothing."""
    # What happened before is over, and pauses have grown.
    await asyncio.sleep(IDLE)
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.sleep(IDLE)
    return (time.process_time() - cpu) / (time.perf_counter() - began)


async def _apart() -> list[Row]:
    """What a process each for the API, the worker and who asks come to."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        apart = Apart(Path(folder))
        async with apart.running("api"):
            await apart.asked(JOBS, CLIENTS)
            rows = []
            for what, way in (
                ("asked for through the API, a process each", apart.asked),
                ("from request to transcript, a process each", apart.done),
            ):
                rates = sorted([1 / await way(APART_JOBS, APART_CLIENTS) for _ in range(REPEATS)])
                cost = ", ".join(f"{role} {cpu * 1e6:,.0f} µs" for role, cpu in apart.cpu.items())
                spread = f"{rates[0]:,.0f} to {rates[-1]:,.0f}; {cost} of CPU a job"
                rows.append(Row(what, f"{rates[len(rates) // 2]:,.0f} jobs/s", spread))
    return rows


async def main() -> bool:
    async with _running() as (system, ingestion):
        await system.pubsub.topic("bench").create(message_retention=3600)
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        app = create_app(system, ingestion)
        serving = asyncio.ensure_future(
            serve(app, "127.0.0.1", 0, on_ready=ready.set_result, stop=stop)
        )
        ways = Ways(system, ingestion, await ready)
        figures = await interleaved(
            REPEATS,
            broker=ways.broker_alone,
            store=ways.store_alone,
            api=ways.asked_through_the_api,
            whole=ways.from_request_to_transcript,
        )
        idle_api = await _idle()
        async with AsyncExitStack() as stack:
            for stage in STAGES:
                await stack.enter_async_context(system.worker(stage))
            idle_all = await _idle()
        stop.set()
        await serving
    apart = await _apart()
    broker, store = figures["broker"], figures["store"]
    table(
        f"Jobs: {JOBS} at a time, JetStream and SQLite both syncing every write",
        [
            _row("the broker alone, five messages a job", broker, broker, "the broker's"),
            _row("the store alone, three rows a job", store, store, "the store's"),
            _row("asked for through the API", figures["api"], broker, "the broker's"),
            _row("", figures["api"], store, "the store's"),
            _row(
                "from request to transcript, no-op stages",
                *(figures["whole"], broker, "the broker's"),
            ),
            _row("", figures["whole"], store, "the store's"),
            Row(what="asking costs, client included", value="", spread=str(ways.asking)),
            Row(what="request to transcript costs", value="", spread=str(ways.working)),
            *apart,
            Row(what="an idle API", value=f"{idle_api:.2%} of a core"),
            Row(what="an idle API and its workers", value=f"{idle_all:.2%} of a core"),
        ],
    )
    return True


def _row(what: str, figures: Figures, beside: Figures, whose: str) -> Row:
    values = ratios(beside, figures)
    return Row(
        what=what,
        value=f"{1 / figures.median:,.0f} jobs/s" if what else "",
        spread=f"{values[0]:.3f} to {values[-1]:.3f} of {whose} rate",
    )
