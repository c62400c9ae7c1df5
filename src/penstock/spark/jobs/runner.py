"""What runs in each Python process of Spark: an event loop in a thread, the database, and whatever
handlers need, a model for instance, opened once and used for all that comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from penstock.client import PubSub
from penstock.jobs.incoming import Incoming
from penstock.jobs.model.event import StageEvent
from penstock.jobs.pipeline.stage import Stage
from penstock.jobs.pipeline.stage_settings import StageSettings
from penstock.jobs.processing import Processing
from penstock.jobs.settings import JobSettings
from penstock.jobs.store.identity import check_identity
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.telemetry import JobObservers, LoggingObserver
from penstock.jobs.tools import check_ready, open_tools
from penstock.jobs.views.sql import SqlJobViews
from penstock.spark.jobs.partition import Partition
from penstock.spark.jobs.places import check_file
from penstock.spark.jobs.task_relay import TaskRelay
from penstock.transactional import Database

_OBSERVER = JobObservers(LoggingObserver())
T = TypeVar("T")


class Runner:
    """Stages and the read model, for the tasks of this process."""

    def __init__(self, settings: JobSettings, identity: str) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        # It ends with the process: Spark ends its workers without telling them.
        threading.Thread(target=self._loop.run_forever, name="penstock", daemon=True).start()
        self._stack = AsyncExitStack()
        self._tools: Any = None
        self._has_tools = False
        self._stages: dict[str, Processing] = {}
        try:
            self._store, self._views, self._relay = self._wait(self._open(identity))
        except BaseException:
            self.close()
            raise

    def run(self, name: str, messages: Sequence[Incoming]) -> None:
        """Deal with a batch. When this raises, some of it may be dealt with: run it again."""
        self._wait(self._run(name, messages))

    def apply(self, events: Sequence[StageEvent]) -> None:
        """To the read model, in one transaction; again it changes nothing."""
        self._wait(self._views.apply(events))

    def close(self) -> None:
        self._wait(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self, identity: str) -> tuple[ProcessingJobStore, SqlJobViews, TaskRelay]:
        """Tables are there, made by the driver; only see that they are the driver's."""
        check_file(self._settings)
        database = await self._stack.enter_async_context(Database(self._settings.database))
        await check_identity(database, identity)
        # Connects when there is something to send: the driver's, for the projection, never does.
        pubsub = PubSub(self._settings.url)
        self._stack.push_async_callback(pubsub.aclose)
        relay = TaskRelay(pubsub, database, _OBSERVER)
        store = ProcessingJobStore(database, self._settings, outbox=relay.outbox)
        self._stack.push_async_exit(store)
        return store, SqlJobViews(database, pipeline=self._settings.pipeline), relay

    async def _run(self, name: str, messages: Sequence[Incoming]) -> None:
        stage = self._settings.pipeline.stage(name)
        settings = self._settings.stages.of(stage)
        if name not in self._stages:
            self._stages[name] = await self._ready(stage, settings)
        partition = Partition(
            self._stages[name], self._store, settings.concurrency, send=self._relay.send
        )
        await partition.run(messages)

    async def _ready(self, stage: Stage, settings: StageSettings) -> Processing:
        """A stage that can work here; else the batch fails, and its messages wait."""
        if not self._has_tools:
            opened = open_tools(self._settings, self._store)
            self._tools = await self._stack.enter_async_context(opened)
            self._has_tools = True
        await check_ready(stage, self._tools)
        at_work = stage.using(self._tools)
        return Processing(
            at_work, settings, self._store, _OBSERVER, unknown_fails=True, sends_again=True
        )
