"""One attempt at one job: is it due, do the work, keep the result. For every runner the same.

What remains to a runner: get jobs, send what `Processed.record` has to say, and settle by
`Processed.outcome`, in this order. Then it may be killed anywhere, and whoever gets the job next
does what is left.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.jobs.job import JobStage, ProcessingJob
from penstock.jobs.stage import Done, Outcome, Reject, Retry, Stage
from penstock.jobs.store import JobRecord, ProcessingJobStore, Standing, standing
from penstock.jobs.telemetry import span

# Seconds between looks at whether a job was cancelled: work on it is wasted, never wrong.
_CANCEL_CHECK = 5.0


@dataclass(frozen=True, slots=True)
class Processed:
    """`outcome`: Done, it is dealt with; Retry, try again; Reject, keep it as a dead letter.
    `record`: the job at a stage that is to be told, if there is something to tell."""

    outcome: Outcome
    record: JobRecord | None = None


async def process(
    stage: Stage,
    store: ProcessingJobStore,
    job: ProcessingJob,
    record: JobRecord | None,
    attempt: int,
) -> Processed:
    """`record` is what the store has of the job; `attempt` counts from 1."""
    match standing(job, record):
        case Standing.STALE:
            return Processed(Done())
        case Standing.DONE:
            return Processed(Done(), record)
        case Standing.UNKNOWN:
            # Its row is committed before its message is sent: this is another database.
            last = attempt >= stage.max_attempts
            return Processed(Reject("unknown-job") if last else Retry("unknown-job"))
    with span(
        f"process {stage.name}",
        job.traceparent,
        {"penstock.job.id": job.job_id, "penstock.job.attempt": attempt},
    ):
        outcome = await _work(stage, store, job, attempt)
        return await _keep(stage, store, job, attempt, outcome)


async def _work(
    stage: Stage, store: ProcessingJobStore, job: ProcessingJob, attempt: int
) -> Outcome:
    if attempt > stage.max_attempts:
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
    return standing(job, await store.get(job.job_id)) is Standing.DUE


async def _keep(
    stage: Stage,
    store: ProcessingJobStore,
    job: ProcessingJob,
    attempt: int,
    outcome: Outcome,
) -> Processed:
    match outcome:
        case Retry():
            return Processed(outcome)
        case Done():
            record = await store.advance(job, stage.emits, outcome)
        case Reject(reason):
            record = await store.fail(job, reason, attempt)
    # Somebody else may have been faster: then theirs is what there is to say.
    record = record or await store.get(job.job_id)
    if record is not None and record.job.stage is JobStage.QUEUED:
        record = None  # It runs anew, and whoever made it do so has said it.
    # A job that failed is dealt with; one that was given up is kept as a dead letter, too.
    gave_up = isinstance(outcome, Reject) and outcome.gave_up
    return Processed(outcome if gave_up else Done(), record)
