"""The messages of one task, dealt with together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from penstock.jobs.incoming import Incoming
from penstock.jobs.model.job import Job
from penstock.jobs.processing import Processing
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.store.records import JobRecord

_Due = tuple[Incoming, Job, JobRecord | None]


class Partition:
    """Side by side, up to `concurrency`; but suspects one by one, after the others.

    A suspect is a job whose last attempt never ended, perhaps because it killed a worker: tried
    alone, only the guilty one is given up.
    """

    def __init__(self, processing: Processing, store: ProcessingJobStore, concurrency: int) -> None:
        self._processing = processing
        self._store = store
        self._concurrency = concurrency

    async def run(self, messages: Sequence[Incoming]) -> None:
        jobs = [
            (message, job)
            for message in messages
            if (job := await self._processing.read(message)) is not None
        ]
        records, suspects = await self._store.begin_together([job for _, job in jobs])
        plain = [
            (message, job, records.get(job.job_id))
            for message, job in jobs
            if job.job_id not in suspects
        ]
        await self._side_by_side(plain)
        for message, job in jobs:
            if job.job_id in suspects:
                await self._processing.attempt(message, job, await self._store.begin(job))

    async def _side_by_side(self, plain: Sequence[_Due]) -> None:
        """Several take from one iterator: a task for each of them, not for each job."""
        due = iter(plain)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._concurrency, len(plain))):
                    group.create_task(self._take_from(due))
        except ExceptionGroup as failed:
            # What Spark shows of it is one line: let it be the line that says why.
            raise failed.exceptions[0] from None

    async def _take_from(self, due: Iterator[_Due]) -> None:
        for message, job, record in due:
            await self._processing.attempt(message, job, record)
