"""The asyncio worker of a stage: take a message, deal with it, ack it.

The message is acked only after all that follows from it is committed. A worker that dies before
leaves it to be delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from penstock.errors import PenstockError
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
from penstock.retrying import is_retryable
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
        self._unkept: set[str] = set()
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
            record, is_suspect = await self._begin(job)
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

    async def _begin(self, job: Job) -> tuple[JobRecord | None, bool]:
        """What is kept of the job, and whether it may have killed whoever had it last."""
        record, is_suspect = await self._store.begin_unless_suspect(job)
        self._processing.outage.over()
        if not is_suspect:
            return record, False
        # Not dead if it is here, and its message was delivered again meanwhile.
        if job.job_id not in self._at_work:
            if job.job_id not in self._unkept:
                return record, True
            # It ended, but the database was away for so long that it never heard of it.
            await self._store.interrupt(job)
            self._unkept.discard(job.job_id)
        return await self._store.begin(job), False

    async def _attempt(self, message: Incoming, job: Job, record: JobRecord | None) -> None:
        self._at_work.add(job.job_id)
        try:
            await self._processing.attempt(message, job, record)
        except PenstockError as error:
            if is_retryable(error):
                self._unkept.add(job.job_id)
            raise
        finally:
            self._at_work.discard(job.job_id)

    def _tell(self, error: Exception, message: Message) -> None:
        """Why a message comes again."""
        if isinstance(error, PenstockError) and is_retryable(error):
            self._processing.outage.met(error)
            return
        subject = subject_of(message.attributes, message.delivery_attempt)
        log_trouble(error, f"Stage {self.stage.name}", subject)

    def _listener(self, subscription: Subscription, drain: float) -> Listener:
        async def handle(message: Message) -> None:
            async with self._places:
                try:
                    await self._deal_with(incoming(message, subscription))
                except CannotWorkError:
                    # Why was said; the retry policy of the subscription says when it comes again.
                    message.nack()
                except Exception as error:
                    self._tell(error, message)
                    message.nack()
                else:
                    message.ack()

        return Listener(subscription, handle, name=f"stage {self.stage.name}", drain=drain)
