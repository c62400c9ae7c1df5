"""One attempt at one job: is it due, do the work, keep the result. For every runner the same.

What remains to a runner: get jobs, send what `Processed.record` has to say, and settle by
`Processed.outcome`, in this order. Then it may be killed anywhere, and whoever gets the job next
does what is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from penstock.config import RetryPolicy
from penstock.errors import PenstockError
from penstock.jobs.model.job import JobStage, ProcessingJob
from penstock.jobs.pipeline.stage import Done, Outcome, Reject, Retry, Stage
from penstock.jobs.store.records import JobRecord, Standing, standing
from penstock.jobs.store.store import ProcessingJobStore
from penstock.jobs.telemetry import span
from penstock.rules.backoff import Backoff

_log = logging.getLogger("penstock.jobs")
T = TypeVar("T")

# Seconds between looks at whether a job was cancelled: work on it is wasted, never wrong.
_CANCEL_CHECK = 5.0
# What took hours to find out is not thrown away because the database is away for a minute.
_KEEP_TRYING = 120.0
_KEEPING = Backoff(initial=0.2, maximum=5.0)


@dataclass(frozen=True, slots=True)
class Processed:
    """`outcome`: Done, it is dealt with; Retry, try again after so long; Reject, keep it as a dead
    letter. `record`: the job at a stage that is to be told, if there is something to tell."""

    outcome: Outcome
    record: JobRecord | None = None


async def process(
    stage: Stage,
    store: ProcessingJobStore,
    job: ProcessingJob,
    record: JobRecord | None,
    retry: RetryPolicy,
) -> Processed:
    """`record` is what `store.begin` answered. After a `Retry` the attempt has not been ended:
    the runner does, because it knows who brings the job back."""
    if job.stage is not stage.consumes:
        # Some filter let through what is for another stage, which has it as well.
        return Processed(Done())
    match standing(job, record):
        case Standing.STALE:
            return Processed(Done())
        case Standing.DONE:
            return Processed(Done(), record)
        case Standing.UNKNOWN:
            # Its row is committed before its message is sent: this is another database.
            return Processed(Reject("unknown-job"))
    attempt = 1 if record is None else record.attempts
    try:
        with span(
            f"process {stage.name}",
            job.traceparent,
            {"penstock.job.id": job.job_id, "penstock.job.attempt": attempt},
        ):
            outcome = await _work(stage, store, job, attempt)
            return await _keep(stage, store, job, attempt, outcome, retry)
    except asyncio.CancelledError:
        # Whoever stops a worker does not make the job fail.
        with suppress(PenstockError):
            await asyncio.shield(store.end_attempt(job, counts=False))
        raise


async def _work(
    stage: Stage, store: ProcessingJobStore, job: ProcessingJob, attempt: int
) -> Outcome:
    if stage.max_attempts is not None and attempt > stage.max_attempts:
        # Whoever had it before died of it each time.
        return Reject("gave-up", gave_up=True)
    work = asyncio.ensure_future(stage.run(job, attempt))
    try:
        while not work.done():
            await asyncio.wait({work}, timeout=_CANCEL_CHECK)
            if not work.done() and not await _still_due(store, job):
                return Done()
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
    return work.result()


async def _still_due(store: ProcessingJobStore, job: ProcessingJob) -> bool:
    try:
        return standing(job, await store.get(job.job_id)) is Standing.DUE
    except PenstockError as error:
        _log.warning("Cannot look whether job %s was cancelled: %s", job.job_id, error)
        return True


async def _keep(
    stage: Stage,
    store: ProcessingJobStore,
    job: ProcessingJob,
    attempt: int,
    outcome: Outcome,
    retry: RetryPolicy,
) -> Processed:
    match outcome:
        case Retry(reason, after):
            return Processed(Retry(reason, retry.delay(attempt) if after is None else after))
        case Done():
            record = await _patiently(lambda: store.advance(job, stage.emits, outcome))
        case Reject(reason):
            record = await _patiently(lambda: store.fail(job, reason, attempt))
    # Somebody else may have been faster: then theirs is what there is to say.
    record = record or await store.get(job.job_id)
    if record is not None and record.job.stage is JobStage.QUEUED:
        record = None  # It runs anew, and whoever made it do so has said it.
    # A job that failed is dealt with; one that was given up is kept as a dead letter, too.
    gave_up = isinstance(outcome, Reject) and outcome.gave_up
    return Processed(outcome if gave_up else Done(), record)


async def _patiently(change: Callable[[], Awaitable[T]]) -> T:
    loop = asyncio.get_running_loop()
    until = loop.time() + _KEEP_TRYING
    failures = 0
    while True:
        try:
            return await change()
        except PenstockError as error:
            failures += 1
            pause = _KEEPING.delay(failures)
            if not error.retryable or loop.time() + pause > until:
                raise
            _log.warning("A result cannot be stored yet: %s", error)
        await asyncio.sleep(pause)
