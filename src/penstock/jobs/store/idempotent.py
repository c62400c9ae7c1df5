"""Handlers of one's own, called only for what is due."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TypeVar

from penstock.errors import NotFoundError
from penstock.jobs.model.job import Job
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.store.records import Standing, standing

T = TypeVar("T")


def idempotent(
    store: ProcessingJobStore,
) -> Callable[[Callable[[Job], Awaitable[T]]], Callable[[Job], Awaitable[T | None]]]:
    """Call a handler only for jobs that are still where their message says they are.

    A message that comes again after its effect was stored, or about a run that is over, is
    skipped and None returned. Store the effect with the store's `step` or `take`, which are guarded
    as well, and a handler that crashes half-way or runs twice at once changes the job once.
    """

    def wrap(
        handler: Callable[[Job], Awaitable[T]],
    ) -> Callable[[Job], Awaitable[T | None]]:
        @wraps(handler)
        async def guarded(job: Job) -> T | None:
            record = await store.get(job.job_id)
            if record is None:
                raise NotFoundError(f"Job {job.job_id} is not in the store; is this its database?")
            due = standing(store.pipeline, job, record) is Standing.DUE
            return await handler(job) if due else None

        return guarded

    return wrap
