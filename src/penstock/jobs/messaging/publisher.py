"""Sending jobs and events directly, for programs that have no transaction to add them to.

The job system itself sends through the outbox of its database.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.client import PubSub
from penstock.errors import ClosedError, PenstockError
from penstock.jobs.model.event import StageEvent
from penstock.jobs.model.job import Job
from penstock.jobs.settings import JobSettings
from penstock.jobs.telemetry import JobObserver, subject_of
from penstock.message import Draft
from penstock.publishing import ManagedPublisher, PublishRetry

_WINDOW = 1000


class Publisher:
    """Sends jobs and events; returns once the broker has them. Nothing runs before the first."""

    def __init__(self, pubsub: PubSub, settings: JobSettings, observer: JobObserver) -> None:
        self._topics = settings.topics
        self._codec = settings.pipeline.codec
        self._observer = observer
        self._pubsub = pubsub
        self._running: ManagedPublisher | None = None
        self._closed = False

    async def aclose(self) -> None:
        self._closed = True
        if self._running is not None:
            await self._running.drain(timeout=10.0)

    async def publish_job(self, job: Job) -> None:
        await self.publish([(self._topics.of(job.media_type), self._codec.encode_job(job))])

    async def publish_event(self, event: StageEvent) -> None:
        await self.publish([(self._topics.events, self._codec.encode_event(event))])

    async def publish(self, messages: Sequence[tuple[str, Draft]]) -> None:
        """All of them; the first failure is raised once all are answered."""
        began = time.monotonic()
        publisher = self._started()
        flights = [
            await publisher.publish_async(
                topic, draft.data, headers=draft.attributes, message_id=draft.message_id
            )
            for topic, draft in messages
        ]
        failure: PenstockError | None = None
        for (topic, draft), flight in zip(messages, flights, strict=True):
            error: PenstockError | None = None
            try:
                await flight.ack
            except PenstockError as raised:
                failure = failure or raised
                error = raised
            took = time.monotonic() - began
            self._observer.published(subject_of(draft.attributes, 1), topic, took, error)
        if failure is not None:
            raise failure

    def _started(self) -> ManagedPublisher:
        if self._closed:
            raise ClosedError("This publisher is closed; use it while its client is entered")
        if self._running is None:
            self._running = ManagedPublisher(
                self._pubsub,
                max_in_flight=_WINDOW,
                refill_allowed_at=_WINDOW - 1,
                retry=PublishRetry(attempts=5, deadline=30.0),
            )
            self._running.start()
        return self._running
