"""A stage inside Spark's tasks: rows of messages in, each dealt with, a count out.

Each Python worker of an executor keeps one `Runner`: an event loop in a thread, with the database
and whatever the handlers need, a model for instance, opened once and used for all tasks. What
follows from a message is committed with it; the driver's relay sends it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from penstock.jobs.incoming import Incoming
from penstock.jobs.model.job import Job
from penstock.jobs.pipeline.declaration import pipeline_of
from penstock.jobs.pipeline.stage_settings import StageSettings
from penstock.jobs.processing import Processing
from penstock.jobs.settings import settings_from_json
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.telemetry import JobObservers, LoggingObserver
from penstock.jobs.tools import open_tools
from penstock.transactional import Database

_OBSERVER = JobObservers(LoggingObserver())
T = TypeVar("T")

INPUT = ("topic", "message_id", "attributes", "data")
OUTPUT = "messages long"


@dataclass(frozen=True)
class StageTask:
    """What a task needs to run a stage; it travels with the task. `pipeline`: where it is found,
    as `module:NAME`."""

    settings: bytes
    pipeline: str
    stage: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        runner = runner_of(self.settings, self.pipeline)
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in INPUT]
            messages = [
                Incoming(topic, message_id, dict(attributes), data)
                for topic, message_id, attributes, data in zip(*columns, strict=True)
            ]
            runner.run(self.stage, messages)
            yield pa.RecordBatch.from_pydict({"messages": [len(messages)]})


class Runner:
    """Stages and what they need, for the tasks of this process."""

    def __init__(self, settings: bytes, pipeline: str) -> None:
        self._settings = settings_from_json(settings, pipeline_of(pipeline))
        self._loop = asyncio.new_event_loop()
        # It ends with the process: Spark ends its workers without telling them.
        threading.Thread(target=self._loop.run_forever, name="penstock", daemon=True).start()
        self._stack = AsyncExitStack()
        self._store, self._tools = self._wait(self._open())

    def run(self, name: str, messages: Sequence[Incoming]) -> None:
        """Deal with a batch. When this raises, some of it may be dealt with: run it again."""
        stage = self._settings.pipeline.stage(name)
        settings = self._settings.stages.of(stage)
        processing = Processing(stage.using(self._tools), settings, self._store, _OBSERVER)
        self._wait(self._run(processing, settings, messages))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> tuple[ProcessingJobStore, Any]:
        enter = self._stack.enter_async_context
        database = await enter(Database(self._settings.database))
        store = await enter(ProcessingJobStore(database, self._settings))
        return store, await enter(open_tools(self._settings, store))

    async def _run(
        self, processing: Processing, settings: StageSettings, messages: Sequence[Incoming]
    ) -> None:
        """All at once, but for suspects: those one by one, after the others."""
        read = await asyncio.gather(*(processing.read(message) for message in messages))
        jobs = [(message, job) for message, job in zip(messages, read, strict=True) if job]
        suspects = await self._suspects([job for _, job in jobs])
        plain = [(message, job) for message, job in jobs if job.job_id not in suspects]
        records = await self._store.begin_all([job for _, job in plain])
        room = asyncio.Semaphore(settings.concurrency)

        async def attempt(message: Incoming, job: Job) -> None:
            async with room:
                await processing.attempt(message, job, records.get(job.job_id))

        async with asyncio.TaskGroup() as group:
            for message, job in plain:
                group.create_task(attempt(message, job))
        for message, job in jobs:
            if job.job_id in suspects:
                await processing.attempt(message, job, await self._store.begin(job))

    async def _suspects(self, jobs: Sequence[Job]) -> set[str]:
        """Jobs whose last attempt never ended, perhaps because it killed a worker: tried alone,
        only the guilty one is given up."""
        kept = await asyncio.gather(*(self._store.get(job.job_id) for job in jobs))
        return {record.job.job_id for record in kept if record is not None and record.trying}


_runners: dict[tuple[bytes, str], Runner] = {}
_lock = threading.Lock()


def runner_of(settings: bytes, pipeline: str) -> Runner:
    """The one of this process, made when it is first wanted."""
    with _lock:
        if (settings, pipeline) not in _runners:
            _runners[settings, pipeline] = Runner(settings, pipeline)
        return _runners[settings, pipeline]
