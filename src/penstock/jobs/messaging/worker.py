"""The asyncio worker of a stage: take a message, deal with it, ack it.

The message is acked only after all that follows from it is committed. A worker that dies before
leaves it to be delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from penstock.jobs.incoming import Incoming
from penstock.jobs.messaging.client import PubSubClient
from penstock.jobs.messaging.listening import Listener, Listeners
from penstock.jobs.messaging.subscriber import incoming, log_trouble
from penstock.jobs.messaging.work_room import WorkRoom
from penstock.jobs.model.job import Job
from penstock.jobs.pipeline.stage import CannotWorkError, Stage
from penstock.jobs.pipeline.stage_settings import StageSettings
from penstock.jobs.processing import Processing
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.store.records import JobRecord
from penstock.jobs.telemetry import subject_of
from penstock.message import Message
from penstock.subscribing import Subscription

_log = logging.getLogger("penstock.jobs")


class StageWorker:
    """Runs one stage until it is left. Handlers of up to `concurrency` jobs run at a time, in the
    `room` that the stages of a process share."""

    def __init__(
        self,
        stage: Stage,
        settings: StageSettings,
        client: PubSubClient,
        store: ProcessingJobStore,
        room: WorkRoom | None = None,
    ) -> None:
        self._processing = Processing(stage, settings, store, client.observer)
        self._store = store
        self._room = room or WorkRoom()
        self._at_work: set[str] = set()
        # Several topics share the concurrency of a stage.
        self._places = asyncio.Semaphore(settings.concurrency)
        self._client = client
        self._subscriptions = client.subscriptions(settings)
        self._listeners = Listeners(
            [self._listener(one, settings.drain) for one in self._subscriptions]
        )

    @property
    def stage(self) -> Stage:
        return self._processing.stage

    async def __aenter__(self) -> Self:
        await self._client.apply_to_subscriptions(self._subscriptions)
        await self._listeners.__aenter__()
        _log.info("Stage %s takes jobs that are %s", self.stage.name, self.stage.consumes)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listeners.__aexit__()

    async def _deal_with(self, message: Incoming) -> None:
        job = await self._processing.read(message)
        if job is None:
            return
        await self._room.enter()
        try:
            record, is_suspect = await self._store.begin_unless_suspect(job)
            if is_suspect and job.job_id in self._at_work:
                # Not dead but here, and its message was delivered again meanwhile.
                record, is_suspect = await self._store.begin(job), False
            if not is_suspect:
                await self._attempt(message, job, record)
                return
        finally:
            self._room.leave()
        async with self._room.alone():
            _log.warning(
                "The last attempt of stage %s at job %s never ended; it is tried again, alone",
                *(self.stage.name, job.job_id),
            )
            await self._attempt(message, job, await self._store.begin(job))

    async def _attempt(self, message: Incoming, job: Job, record: JobRecord | None) -> None:
        self._at_work.add(job.job_id)
        try:
            await self._processing.attempt(message, job, record)
        finally:
            self._at_work.discard(job.job_id)

    def _listener(self, subscription: Subscription, drain: float) -> Listener:
        async def handle(message: Message) -> None:
            async with self._places:
                try:
                    await self._deal_with(incoming(message, subscription))
                except CannotWorkError:
                    # Why was said; the retry policy of the subscription says when it comes again.
                    message.nack()
                except Exception as error:
                    subject = subject_of(message.attributes, message.delivery_attempt)
                    log_trouble(error, f"Stage {self.stage.name}", subject)
                    message.nack()
                else:
                    message.ack()

        return Listener(subscription, handle, name=f"stage {self.stage.name}", drain=drain)
