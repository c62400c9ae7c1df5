"""Wiring: from settings to running parts, each entered and left in order.

`job_system` connects broker and database and sends what is committed. What a process does with
them it enters on top: `ingesting` to take jobs in and answer about them, `working` to run stages.
One process may do all of it, as `penstock jobs serve --workers` does, or each may do one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.client import PubSub
from penstock.errors import InvalidArgumentError
from penstock.jobs.messaging.client import PubSubClient
from penstock.jobs.messaging.keeping import keeping
from penstock.jobs.messaging.work_room import WorkRoom
from penstock.jobs.messaging.worker import StageWorker
from penstock.jobs.pipeline.stage import Stage
from penstock.jobs.service import JobService
from penstock.jobs.settings import JobSettings
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.telemetry import JobObserver, as_relay_observer
from penstock.jobs.tools import check_ready, open_tools
from penstock.jobs.views.memory import JobViews
from penstock.jobs.views.projection import Projection
from penstock.jobs.views.sql import SqlJobViews
from penstock.jobs.views.view import Views
from penstock.lifetime import running_beside
from penstock.retrying import Outage, do_every
from penstock.transactional import Database, Outbox, Relay

_log = logging.getLogger("penstock.jobs")
# A client that asks again with its key is answered from the jobs; messages need not be kept long.
_REMEMBERED = 7 * 86_400.0
_CLEAN_EVERY = 600.0
# A commit wakes the relay of its own process: looks are for what a process left that died.
_LOOK_EVERY = 5.0
# What it had not yet sent waits so long for another.
_LEASE = 10.0


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
    """A broker and a database, the jobs that live in both, and the relay between them."""

    settings: JobSettings
    pubsub: PubSub
    database: Database
    store: ProcessingJobStore
    client: PubSubClient
    relay: Relay
    room: WorkRoom = field(default_factory=WorkRoom)

    @asynccontextmanager
    async def ingesting(self) -> AsyncIterator[Ingestion]:
        """Take jobs in, keep the read model, and see to it that topics stay there."""
        await self.client.apply_to_topics()
        async with AsyncExitStack() as stack:
            pipeline = self.settings.pipeline
            views: Views = JobViews(pipeline=pipeline)
            if self.settings.api.views == "sql":
                kept = SqlJobViews(self.database, pipeline=pipeline)
                views = await stack.enter_async_context(kept)
            projection = Projection(self.client, views, self.settings.api.views_subscription)
            await stack.enter_async_context(projection)
            await stack.enter_async_context(keeping(self.client))
            stack.enter_context(self.relay.telling(projection.wake))
            yield Ingestion(
                service=JobService(self.store, self.client.observer),
                views=views,
                projection=projection,
                relay=self.relay,
                outbox=self.store.outbox,
            )

    def worker(self, stage: Stage) -> StageWorker:
        """Runs a stage while it is entered, as the settings of the jobs it takes say. It is one of
        the pipeline, or does the work of one by another handler."""
        declared = self.settings.pipeline.in_place_of(stage)
        if stage.takes_tools:
            raise InvalidArgumentError(
                f"The handler of stage {stage.name!r} wants the tools of its pipeline; run it with "
                f"`working({stage.name!r})`, or give it tools of your own with `stage.using(…)`"
            )
        stage = replace(stage, event=stage.event or declared.event)
        settings = self.settings.stages.of(declared)
        return StageWorker(stage, settings, self.client, self.store, self.room)

    @asynccontextmanager
    async def working(self, *names: str) -> AsyncIterator[None]:
        """Run stages of the pipeline, those named or all of them, with the tools it opens. None
        of them takes a job unless all of them are ready to work."""
        pipeline = self.settings.pipeline
        stages = [pipeline.stage(name) for name in names] or pipeline.stages
        async with AsyncExitStack() as stack:
            tools = await stack.enter_async_context(open_tools(self.settings, self.store))
            for stage in stages:
                await check_ready(stage, tools)
            for stage in stages:
                await stack.enter_async_context(self.worker(stage.using(tools)))
            yield


@asynccontextmanager
async def relaying(
    database: Database, pubsub: PubSub, observer: JobObserver, **options: Any
) -> AsyncIterator[Relay]:
    """Send what the outbox of the jobs holds, and forget what was sent long ago. Every process
    that has a part in the jobs does; they share the rows."""
    outbox = Outbox(database)
    outage = Outage(_log, "The outbox cannot be cleaned")
    observe = as_relay_observer(observer)
    async with (
        Relay(database, pubsub, outbox=outbox, observe=observe, **options) as relay,
        running_beside(do_every(_CLEAN_EVERY, lambda: outbox.clean(_REMEMBERED), outage)),
    ):
        yield relay


@asynccontextmanager
async def job_system(
    settings: JobSettings, *, pubsub: PubSub | None = None, observer: JobObserver | None = None
) -> AsyncIterator[JobSystem]:
    """Connected and provisioned, and what is committed is sent. A `pubsub` that is given is left
    open at the end."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        if pubsub is None:
            pubsub = await enter(PubSub(settings.url))
        database = await enter(Database(settings.database))
        client = await enter(PubSubClient(pubsub, settings, observer))
        relay = await enter(
            relaying(database, pubsub, client.observer, poll=_LOOK_EVERY, lease=_LEASE)
        )
        # What is committed here is sent from here: no need to claim it and to read it back.
        outbox = relay.held_outbox()
        store = ProcessingJobStore(database, settings, outbox=outbox, on_commit=relay.wake)
        await enter(store)
        if database.dialect == "sqlite":
            # One writer at a time: a transaction of the relay's own keeps jobs waiting.
            stack.enter_context(relay.settling_in(store.do_together))
        yield JobSystem(
            settings=settings,
            pubsub=pubsub,
            database=database,
            store=store,
            client=client,
            relay=relay,
        )
