"""The asyncio worker of a stage: take a message, deal with it, ack it.

The message is acked only after all that follows from it is committed. A worker that dies before
leaves it to be delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from penstock.jobs.messaging.client import PubSubClient
from penstock.jobs.messaging.listening import Listener, Listeners
from penstock.jobs.messaging.subscriber import incoming, log_trouble
from penstock.jobs.pipeline.stage import CannotWorkError, Stage
from penstock.jobs.pipeline.stage_settings import StageSettings
from penstock.jobs.processing import Processing
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.telemetry import subject_of
from penstock.message import Message
from penstock.subscribing import Subscription

_log = logging.getLogger("penstock.jobs")


class StageWorker:
    """Runs one stage until it is left. Handlers of up to `concurrency` jobs run at a time."""

    def __init__(
        self,
        stage: Stage,
        settings: StageSettings,
        client: PubSubClient,
        store: ProcessingJobStore,
    ) -> None:
        self._processing = Processing(stage, settings, store, client.observer)
        # Several topics share the concurrency of a stage.
        self._room = asyncio.Semaphore(settings.concurrency)
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

    def _listener(self, subscription: Subscription, drain: float) -> Listener:
        async def handle(message: Message) -> None:
            async with self._room:
                try:
                    await self._processing.one(incoming(message, subscription))
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
