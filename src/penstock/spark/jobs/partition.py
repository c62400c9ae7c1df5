"""The messages of one task, dealt with together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from penstock.batching import GroupCommit
from penstock.jobs.incoming import Incoming
from penstock.jobs.model.job import Job
from penstock.jobs.processing import Attempted, Processing
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.store.records import JobRecord, UnknownStageError

_Due = tuple[Incoming, Job, JobRecord | None]
_TOGETHER = 1000
# Seconds of work that are kept together. What took longer is kept before more is begun, so that
# whoever is killed loses no more than that of what was done.
_MOMENT = 0.1


async def _nothing() -> None:
    pass


class Partition:
    """Side by side, up to `concurrency`; but suspects one by one, after the others.

    A suspect is a job whose last attempt never ended, perhaps because it killed a worker: tried
    alone, only the guilty one is given up. One at a stage that this program does not know is put
    off. Attempts are counted in one transaction before they are made, and what ends within a moment
    is kept in one. `send` is called whenever something was kept: what follows from it is to be
    sent, and does not wait for those who take longer.
    """

    def __init__(
        self,
        processing: Processing,
        store: ProcessingJobStore,
        concurrency: int,
        *,
        send: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._processing = processing
        self._store = store
        self._concurrency = concurrency
        self._send = send

    async def run(self, messages: Sequence[Incoming]) -> None:
        try:
            await self._run(messages)
        finally:
            await self._send()

    async def _run(self, messages: Sequence[Incoming]) -> None:
        jobs = [
            (message, job)
            for message in messages
            if (job := await self._processing.read(message)) is not None
        ]
        if not jobs:
            return
        records, suspects = await self._store.begin_together([job for _, job in jobs])
        plain = [
            (message, job, records.get(job.job_id))
            for message, job in jobs
            if job.job_id not in suspects
        ]
        await self._side_by_side(plain)
        for message, job in jobs:
            if job.job_id in suspects:
                await self._alone(message, job)
                await self._send()

    async def _alone(self, message: Incoming, job: Job) -> None:
        try:
            record = await self._store.begin(job)
        except UnknownStageError as error:
            # A worker would have it brought again; of a batch nobody brings one back.
            await self._processing.put_off(message, job, error)
        else:
            await self._processing.attempt(message, job, record)

    async def _side_by_side(self, plain: Sequence[_Due]) -> None:
        """Several take from one iterator: a task for each of them, not for each job."""
        due = iter(plain)
        keeping = _Keeping(self._processing, self._send)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._concurrency, len(plain))):
                    group.create_task(self._take_from(due, keeping))
        except ExceptionGroup as failed:
            # What Spark shows of it is one line: let it be the line that says why.
            raise failed.exceptions[0] from None
        finally:
            await keeping.finish()

    async def _take_from(self, due: Iterator[_Due], keeping: _Keeping) -> None:
        for message, job, record in due:
            ended = await self._processing.work(message, job, record)
            if ended is not None:
                await keeping.add(ended)


class _Keeping:
    """Attempts that have ended, on their way into the database. Those that end while a transaction
    runs go together in the next."""

    def __init__(self, processing: Processing, send: Callable[[], Awaitable[None]]) -> None:
        self._processing = processing
        self._send = send
        self._commits: GroupCommit[Attempted, None] = GroupCommit(self._keep, most=_TOGETHER)
        self._failure: Exception | None = None
        self._kept_at = time.monotonic()

    async def add(self, ended: Attempted) -> None:
        """Have it kept. Waits until it is, if it has been a while since anything was."""
        self._commits.add(ended)
        if time.monotonic() - self._kept_at > _MOMENT:
            await self.finish()

    async def finish(self) -> None:
        """Until all that was added is kept; raises what kept it from being."""
        await self._commits.finished()
        self._kept_at = time.monotonic()
        if self._failure is not None:
            raise self._failure

    async def _keep(self, many: Sequence[Attempted]) -> Sequence[None]:
        try:
            await self._processing.keep_together(many)
        except Exception as error:
            self._failure = self._failure or error
        await self._send()
        return [None] * len(many)
