"""The setting these tests share: a job system, handlers that do as told, and a record of both."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.jobs import (
    AudioInfo,
    Done,
    JobRecord,
    JobSettings,
    JobStage,
    JobSystem,
    JobView,
    MediaType,
    Observer,
    Outcome,
    ProcessingJob,
    Segment,
    Stage,
    Text,
    job_system,
    load_settings,
)
from penstock.jobs.system import Ingestion
from penstock.message import Record


@dataclass
class Place:
    url: str
    database: str


INFO = AudioInfo(duration=2.5, size=1000, container="wav", codec="pcm_s16le")
TEXT = Text(segments=[Segment(0.0, 2.5, "hello there")], language="en", model="none")


async def looks(_: ProcessingJob) -> Outcome:
    return Done(info=INFO)


async def listens(_: ProcessingJob) -> Outcome:
    return Done(text=TEXT)


@dataclass
class Scene:
    system: JobSystem
    ingestion: Ingestion
    calls: Counter[str] = field(default_factory=Counter)

    def stage(
        self, name: str, handler: Callable[[ProcessingJob], Awaitable[Outcome]], **options: Any
    ) -> Stage:
        async def counted(job: ProcessingJob) -> Outcome:
            self.calls[f"{name} {job.job_id}"] += 1
            return await handler(job)

        ends = {
            "metadata": (JobStage.QUEUED, JobStage.METADATA_READY),
            "transcription": (JobStage.METADATA_READY, JobStage.TRANSCRIPT_COMPLETE),
        }
        consumes, emits = ends[name]
        return Stage(name=name, consumes=consumes, emits=emits, handler=counted, **options)

    @asynccontextmanager
    async def working(
        self,
        metadata: Callable[[ProcessingJob], Awaitable[Outcome]] | None = looks,
        transcription: Callable[[ProcessingJob], Awaitable[Outcome]] | None = listens,
        **options: Any,
    ) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for name, handler in (("metadata", metadata), ("transcription", transcription)):
                if handler is not None:
                    worker = self.system.worker(self.stage(name, handler, **options))
                    await stack.enter_async_context(worker)
            yield

    async def submit(self, source: str = "a.wav", **more: Any) -> JobRecord:
        kind = more.pop("media_type", MediaType.AUDIO)
        record, _ = await self.ingestion.service.submit("user-1", kind, source, **more)
        return record

    async def view_at(
        self, job_id: str, *stages: JobStage, run: int = 1, within: float = 240.0
    ) -> JobView:
        """The view once it is at one of `stages`."""
        async with asyncio.timeout(within):
            while True:
                view = await self.ingestion.views.get(job_id)
                if view is not None and view.stage in stages and view.run == run:
                    return view
                await asyncio.sleep(0.01)

    async def ended(self, job_id: str, *, run: int = 1, within: float = 240.0) -> JobView:
        stages = (JobStage.TRANSCRIPT_COMPLETE, JobStage.FAILED, JobStage.CANCELLED)
        return await self.view_at(job_id, *stages, run=run, within=within)

    async def dead_letters(self, count: int, topic: str = "job-processing-dead") -> list[Record]:
        """Once there are so many."""

        async def enough() -> bool:
            return len(await self.stored(topic)) >= count

        await until(enough)
        return await self.stored(topic)

    async def stored(self, topic: str) -> list[Record]:
        """What a topic holds, in order."""
        broker = await self.system.pubsub.broker()
        assert broker.log is not None
        extent = await broker.log.extent(topic)
        batches = broker.log.read(topic, extent.first, extent.last)
        return [record async for batch in batches for record in batch]


async def until(condition: Callable[[], Awaitable[bool]], within: float = 240.0) -> None:
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def jobs_on(
    place: Place,
    *,
    observer: Observer | None = None,
    change: Callable[[JobSettings], JobSettings] = lambda settings: settings,
    **settings: Any,
) -> AsyncIterator[Scene]:
    """A system in a place. `change`: for settings that no user may have."""
    loaded = load_settings(environ={}, **{"url": place.url, "database": place.database, **settings})
    async with (
        job_system(change(loaded), observer=observer) as system,
        system.ingesting() as ingestion,
    ):
        yield Scene(system, ingestion)


IMPATIENT = {"minimum_backoff": 0, "maximum_backoff": 0}
"""Stage settings under which a retry comes at once."""


def impatient(**more: Any) -> dict[str, Any]:
    return {"metadata": {**IMPATIENT, **more}, "transcription": {**IMPATIENT, **more}}
