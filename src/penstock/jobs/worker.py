"""The asyncio worker of a stage: take a job, do the work, keep the result, say so, then ack.

The incoming message is the promise that all of it happens: it is acked only after the result is
stored and the job's next messages are with the broker. A worker that dies anywhere before leaves
it to be delivered again; what was already stored is then not done again, only said again, under
the same message ids.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

from penstock.jobs.client import PubSubClient
from penstock.jobs.codec import decode_job
from penstock.jobs.job import JobStage, ProcessingJob
from penstock.jobs.settings import StageSettings
from penstock.jobs.stage import Done, Outcome, Reject, Retry, Stage
from penstock.jobs.store import JobRecord, ProcessingJobStore, Standing, standing
from penstock.jobs.telemetry import span

_log = logging.getLogger("penstock.jobs")
# Handlers check this seldom for a cancelled job: work on it is wasted, never wrong.
_CANCEL_CHECK = 5.0


class StageWorker:
    """Runs one stage until it is left. Handlers of up to `concurrency` jobs run at a time."""

    def __init__(
        self,
        stage: Stage,
        settings: StageSettings,
        client: PubSubClient,
        store: ProcessingJobStore,
    ) -> None:
        self.stage = stage
        self._client = client
        self._store = store
        self._max_attempts = stage.max_attempts
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

    async def _handle(self, job: ProcessingJob, attempt: int) -> Outcome:
        record = await self._store.get(job.job_id)
        match standing(job, record):
            case Standing.STALE:
                return Done()
            case Standing.UNKNOWN:
                # Its row is committed before its message is sent: this is another database.
                return (
                    Retry("unknown-job") if attempt < self._max_attempts else Reject("unknown-job")
                )
            case Standing.DONE:
                return await self._say(record)
        with span(
            f"process {self.stage.name}",
            job.traceparent,
            {"penstock.job.id": job.job_id, "penstock.job.attempt": attempt},
        ):
            outcome = await self._work(job, attempt)
            return await self._keep(job, attempt, outcome)

    async def _work(self, job: ProcessingJob, attempt: int) -> Outcome:
        if attempt > self._max_attempts:
            # Whoever had it before died of it each time.
            return Reject("gave-up", gave_up=True)
        work = asyncio.ensure_future(self.stage.run(job, attempt))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_CANCEL_CHECK)
                if not work.done() and not await self._still_due(job):
                    return Done()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        return work.result()

    async def _still_due(self, job: ProcessingJob) -> bool:
        return standing(job, await self._store.get(job.job_id)) is Standing.DUE

    async def _keep(self, job: ProcessingJob, attempt: int, outcome: Outcome) -> Outcome:
        store = self._store
        match outcome:
            case Retry():
                return outcome
            case Done():
                record = await store.advance(job, self.stage.emits, outcome)
            case Reject(reason):
                record = await store.fail(job, reason, attempt)
        # Somebody else may have been faster: then theirs is what there is to say.
        said = await self._say(record or await store.get(job.job_id))
        # A job that failed is dealt with; one that was given up is kept as a dead letter, too.
        return outcome if isinstance(outcome, Reject) and outcome.gave_up else said

    async def _say(self, record: JobRecord | None) -> Done:
        if record is not None and record.job.stage is not JobStage.QUEUED:
            await self._client.publisher.publish_stage(record)
        return Done()
