"""The asyncio worker of a stage: take a job, do the work, keep the result, say so, then ack.

The incoming message is the promise that all of it happens: it is acked only after the result is
stored and the job's next messages are with the broker. A worker that dies anywhere before leaves
it to be delivered again; what was already stored is then not done again, only said again, under
the same message ids.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from penstock.jobs.messaging.client import PubSubClient
from penstock.jobs.model.codec import decode_job
from penstock.jobs.model.job import ProcessingJob
from penstock.jobs.pipeline.processing import process
from penstock.jobs.pipeline.stage import Outcome, Retry, Stage
from penstock.jobs.settings import StageSettings
from penstock.jobs.store.store import ProcessingJobStore

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
        self.stage = stage.limited(settings.time_limit, settings.max_attempts)
        self._retry = settings.retry_policy
        self._client = client
        self._store = store
        self._subscribers = client.subscriber(settings, decode_job, self._handle, name=stage.name)

    async def __aenter__(self) -> Self:
        await self._subscribers.__aenter__()
        _log.info("Stage %s takes jobs that are %s", self.stage.name, self.stage.consumes)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._subscribers.__aexit__(kind, error, traceback)

    async def _handle(self, job: ProcessingJob, _delivery: int) -> Outcome:
        store = self._store
        record = await store.begin(job)
        processed = await process(self.stage, store, job, record, self._retry)
        if processed.record is not None:
            await self._client.publisher.publish_stage(processed.record, job.stage)
        if isinstance(processed.outcome, Retry):
            await store.end_attempt(job)
        return processed.outcome
