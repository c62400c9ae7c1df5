"""Jobs: asking for them through the API, and taking them from request to transcript, beside what
the broker alone does."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from benchmarks.measure import Figures, Row, interleaved, ratios, table
from penstock import Draft
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
    load_settings,
)
from penstock.jobs.system import Ingestion
from penstock.web import create_app, serve

JOBS = 600
CLIENTS = 32
REPEATS = 3
_INFO = AudioInfo(duration=2.5, size=1000, container="wav", codec="pcm_s16le")
_TEXT = Text(segments=[Segment(0.0, 2.5, "hello there")], language="en")


async def _look(_: ProcessingJob) -> Outcome:
    return Done(info=_INFO)


async def _listen(_: ProcessingJob) -> Outcome:
    return Done(text=_TEXT)


_STAGES = (
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
        eager = {"concurrency": 256}
        settings = load_settings(
            environ={},
            url=f"local://{folder}/broker",
            database=f"sqlite:///{folder}/jobs.db",
            stages={"metadata": eager, "transcription": eager},
        )
        async with job_system(settings) as system, system.ingesting() as ingestion:
            yield system, ingestion


class Ways:
    def __init__(self, system: JobSystem, ingestion: Ingestion, address: str) -> None:
        self._system = system
        self._ingestion = ingestion
        self._address = address
        self._runs = 0

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
        """By a client of a few lines: one that does more would measure itself."""
        left = JOBS
        port = int(self._address.rpartition(":")[2])
        body = b'{"mediaType":"audio","source":"a.wav"}'
        request = (
            b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )

        async def ask() -> None:
            nonlocal left
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while left > 0:
                left -= 1
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 202")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
            writer.close()
            await writer.wait_closed()

        began = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(CLIENTS)))
        return (time.perf_counter() - began) / JOBS

    async def from_request_to_transcript(self) -> float:
        """With handlers that do nothing, what is left is ours."""
        async with AsyncExitStack() as stack:
            for stage in _STAGES:
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
            api=ways.asked_through_the_api,
            whole=ways.from_request_to_transcript,
        )
        stop.set()
        await serving
    table(
        f"Jobs: {JOBS} at a time, JetStream and SQLite both syncing every write",
        [
            _row("the broker alone, five messages a job", figures["broker"], figures["broker"]),
            _row("asked for through the API", figures["api"], figures["broker"]),
            _row("from request to transcript, no-op stages", figures["whole"], figures["broker"]),
        ],
    )
    return True


def _row(what: str, figures: Figures, broker: Figures) -> Row:
    values = ratios(broker, figures)
    return Row(
        what=what,
        value=f"{1 / figures.median:,.0f} jobs/s",
        spread=f"{values[0]:.3f} to {values[-1]:.3f} of the broker's rate",
    )
