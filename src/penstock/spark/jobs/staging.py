"""A stage inside Spark's tasks: rows of jobs in, rows of messages out.

Each Python worker of an executor keeps one `Runner`: an event loop in a thread, with the database
and whatever the handlers need, a model for instance, opened once and used for all tasks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from penstock.errors import InvalidArgumentError
from penstock.jobs.messaging.client import messages_of
from penstock.jobs.model.codec import InvalidMessageError, decode_job
from penstock.jobs.model.job import ProcessingJob
from penstock.jobs.pipeline.media import media_tools
from penstock.jobs.pipeline.processing import process
from penstock.jobs.pipeline.stage import Reject, Retry, Stage
from penstock.jobs.settings import JobSettings, StageSettings
from penstock.jobs.store.records import JobRecord
from penstock.jobs.store.store import ProcessingJobStore
from penstock.message import Draft
from penstock.transactional import Database

_log = logging.getLogger("penstock.spark")
T = TypeVar("T")

HANDLERS = "penstock.jobs.pipeline.media:STAGES"
"""Where stages come from: a module and a mapping in it from names to factories, which take the
settings and the media tools."""

INPUT = ("topic", "message_id", "attributes", "data")
OUTPUT = "topic string, message_id string, attributes map<string,string>, data binary"
_OUTPUT = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("data", pa.binary()),
    ]
)


@dataclass(frozen=True)
class StageTask:
    """What a task needs to run a stage; it travels with the task."""

    settings: JobSettings
    stage: str
    handlers: str = HANDLERS

    @property
    def stage_settings(self) -> StageSettings:
        found: StageSettings = getattr(self.settings.stages, self.stage)
        return found

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        runner = runner_of(self.settings, self.handlers)
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in INPUT]
            messages = [
                Incoming(topic, message_id, dict(attributes), data)
                for topic, message_id, attributes, data in zip(*columns, strict=True)
            ]
            said = runner.run(self, messages)
            # Topic by topic: the sink sends runs of one topic together.
            yield _rows(sorted(said, key=lambda one: one[0]))


@dataclass(frozen=True)
class Incoming:
    topic: str
    message_id: str
    attributes: dict[str, str] = field(repr=False)
    data: bytes = field(repr=False)


class Runner:
    """Stages and what they need, for the tasks of this process."""

    def __init__(self, settings: JobSettings, handlers: str) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        # It ends with the process: Spark ends its workers without telling them.
        threading.Thread(target=self._loop.run_forever, name="penstock", daemon=True).start()
        self._stack = AsyncExitStack()
        self._store, self._stages = self._wait(self._open(handlers))

    def run(self, task: StageTask, messages: Sequence[Incoming]) -> list[tuple[str, Draft]]:
        """Work on a batch; returns what there is to publish."""
        return self._wait(self._run(self._stages[task.stage], task.stage_settings, messages))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self, handlers: str) -> tuple[ProcessingJobStore, dict[str, Stage]]:
        enter = self._stack.enter_async_context
        database = await enter(Database(self._settings.database))
        store = await enter(ProcessingJobStore(database))
        tools = await enter(media_tools(self._settings.media, store))
        factories = stage_factories(handlers)
        stages = {}
        for name, make in factories.items():
            limits: StageSettings = getattr(self._settings.stages, name)
            stage = make(self._settings, tools)
            stages[name] = stage.limited(limits.time_limit, limits.max_attempts)
        return store, stages

    async def _run(
        self, stage: Stage, settings: StageSettings, messages: Sequence[Incoming]
    ) -> list[tuple[str, Draft]]:
        said: list[tuple[str, Draft]] = []
        jobs: list[tuple[Incoming, ProcessingJob]] = []
        for message in messages:
            try:
                jobs.append((message, decode_job(message.data, message.attributes)))
            except InvalidMessageError as error:
                said.append(_dead(message, settings, error.reason))
        suspects = await self._suspects([job for _, job in jobs])
        records = await self._store.begin_all([j for _, j in jobs if j.job_id not in suspects])
        room = asyncio.Semaphore(settings.concurrency)

        async def one(message: Incoming, job: ProcessingJob) -> list[tuple[str, Draft]]:
            async with room:
                return await self._process(stage, settings, message, job, records.get(job.job_id))

        plain = [pair for pair in jobs if pair[1].job_id not in suspects]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(message, job)) for message, job in plain]
        for task in tasks:
            said += task.result()
        for message, job in jobs:
            if job.job_id in suspects:
                record = await self._store.begin(job)
                said += await self._process(stage, settings, message, job, record)
        return said

    async def _suspects(self, jobs: Sequence[ProcessingJob]) -> set[str]:
        """Jobs whose last attempt never ended, perhaps because it killed a worker: those are tried
        one by one, after the others, so that only the guilty one is given up."""
        kept = await asyncio.gather(*(self._store.get(job.job_id) for job in jobs))
        return {record.job.job_id for record in kept if record is not None and record.trying}

    async def _process(
        self,
        stage: Stage,
        settings: StageSettings,
        message: Incoming,
        job: ProcessingJob,
        record: JobRecord | None,
    ) -> list[tuple[str, Draft]]:
        processed = await process(stage, self._store, job, record, settings.retry_policy)
        said: list[tuple[str, Draft]] = []
        if processed.record is not None:
            said += messages_of(processed.record, self._settings.topics, job.stage)
        match processed.outcome:
            case Retry(_, after):
                await self._store.end_attempt(job, again_in=after or 0.0)
            case Reject(reason):
                said.append(_dead(message, settings, reason))
        return said


def _dead(message: Incoming, settings: StageSettings, reason: str) -> tuple[str, Draft]:
    """The message as it came, kept where somebody can look at it."""
    topic = settings.dead_letters(message.topic)
    _log.warning("Dead letter of %s: %s (%s)", message.topic, message.message_id, reason)
    return topic, Draft.of(
        message.data, message.attributes, message_id=f"{message.message_id}.dead"[:256]
    )


def _rows(messages: Sequence[tuple[str, Draft]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([topic for topic, _ in messages], pa.string()),
            pa.array([draft.message_id for _, draft in messages], pa.string()),
            pa.array([list(d.attributes.items()) for _, d in messages], _OUTPUT.field(2).type),
            pa.array([draft.data for _, draft in messages], pa.binary()),
        ],
        schema=_OUTPUT,
    )


def stage_factories(handlers: str) -> dict[str, Callable[..., Stage]]:
    """`module:mapping`, looked up where it is needed."""
    module, _, name = handlers.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise InvalidArgumentError(
            f"Handlers {handlers!r} cannot be found; give them as module:mapping, and see that "
            "the module is installed on every machine that runs them"
        ) from None
    return dict(found)


_runners: dict[tuple[bytes, str], Runner] = {}
_lock = threading.Lock()


def runner_of(settings: JobSettings, handlers: str) -> Runner:
    """The one of this process, made when it is first wanted."""
    key = (msgspec.json.encode(settings), handlers)
    with _lock:
        if key not in _runners:
            _runners[key] = Runner(settings, handlers)
        return _runners[key]
