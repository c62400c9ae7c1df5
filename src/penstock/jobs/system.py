"""Wiring: from settings to running parts, each entered and left in order.

`job_system` connects broker and database. What a process does with them it enters on top:
`ingesting` to take jobs in and answer about them, `working` to run a stage. One process may do all
of it, as `penstock jobs serve --workers` does, or each may do one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from penstock.client import PubSub
from penstock.errors import PenstockError
from penstock.jobs.messaging.client import PubSubClient, subject_of
from penstock.jobs.messaging.worker import StageWorker
from penstock.jobs.model.job import JobStage
from penstock.jobs.pipeline.stage import Stage
from penstock.jobs.service import JobService
from penstock.jobs.settings import JobSettings
from penstock.jobs.store.store import ProcessingJobStore
from penstock.jobs.telemetry import Observer
from penstock.jobs.views.memory import JobViews, Views
from penstock.jobs.views.projection import Projection
from penstock.jobs.views.sql import SqlJobViews
from penstock.message import Draft
from penstock.transactional import Database, Outbox, Relay

_log = logging.getLogger("penstock.jobs")
# A client that asks again with its key is answered from the jobs; messages need not be kept long.
_REMEMBERED = 7 * 86_400.0
_CLEAN_EVERY = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingestion:
    """What takes jobs in and answers about them."""

    service: JobService
    views: Views
    projection: Projection
    relay: Relay
    outbox: Outbox


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSystem:
    """A broker and a database, and the jobs that live in both."""

    settings: JobSettings
    pubsub: PubSub
    database: Database
    store: ProcessingJobStore
    client: PubSubClient

    @asynccontextmanager
    async def ingesting(self) -> AsyncIterator[Ingestion]:
        """Publish what is committed, and keep the read model."""
        outbox = Outbox(self.database)
        await outbox.create()
        async with AsyncExitStack() as stack:
            views: Views = JobViews()
            if self.settings.api.views == "sql":
                views = await stack.enter_async_context(SqlJobViews(self.database))
            projection = Projection(self.client, views, self.settings.api.views_subscription)
            await stack.enter_async_context(projection)
            relay = Relay(self.database, self.pubsub, outbox=outbox, observe=self._observe)
            await stack.enter_async_context(relay)
            await stack.enter_async_context(_cleaning(outbox))
            service = JobService(self.store, outbox, self.settings.topics, on_commit=relay.wake)
            stack.push_async_callback(service.aclose)
            yield Ingestion(
                service=service, views=views, projection=projection, relay=relay, outbox=outbox
            )

    def _observe(
        self, topic: str, draft: Draft, seconds: float, error: PenstockError | None
    ) -> None:
        self.client.observer.published(subject_of(draft.attributes, 1), topic, seconds, error)

    def worker(self, stage: Stage) -> StageWorker:
        """Runs a stage while it is entered, as the settings of the jobs it takes say."""
        stages = self.settings.stages
        first = stage.consumes is JobStage.QUEUED
        settings = stages.metadata if first else stages.transcription
        return StageWorker(stage, settings, self.client, self.store)


@asynccontextmanager
async def _cleaning(outbox: Outbox) -> AsyncIterator[None]:
    """Forget messages that were published long ago, now and then."""

    async def clean() -> None:
        while True:
            try:
                await outbox.clean(_REMEMBERED)
            except PenstockError as error:
                _log.warning("The outbox could not be cleaned: %s", error)
            await asyncio.sleep(_CLEAN_EVERY)

    cleaner = asyncio.get_running_loop().create_task(clean())
    try:
        yield
    finally:
        cleaner.cancel()
        await asyncio.wait({cleaner})


@asynccontextmanager
async def job_system(
    settings: JobSettings, *, pubsub: PubSub | None = None, observer: Observer | None = None
) -> AsyncIterator[JobSystem]:
    """Connected and provisioned. A `pubsub` that is given is left open at the end."""
    async with AsyncExitStack() as stack:
        if pubsub is None:
            pubsub = await stack.enter_async_context(PubSub(settings.url))
        database = await stack.enter_async_context(Database(settings.database))
        store = await stack.enter_async_context(ProcessingJobStore(database))
        client = await stack.enter_async_context(PubSubClient(pubsub, settings, observer))
        yield JobSystem(
            settings=settings, pubsub=pubsub, database=database, store=store, client=client
        )
