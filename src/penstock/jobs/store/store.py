"""Where jobs are kept: SQL, one row a job, changed only by legal steps.

Every change is guarded by what it expects to find, so that a message that comes twice, late or out
of order changes nothing the second time. Changes that wait for the database at the same time are
committed together: a sync to disk costs the same for one as for fifty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from types import TracebackType
from typing import Self, TypeVar

import msgspec
from msgspec.structs import replace
from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.batching import Together
from penstock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from penstock.jobs.model.job import JobStage, ProcessingJob, now
from penstock.jobs.pipeline.stage import Done, Text
from penstock.jobs.store.records import (
    CHANGE,
    SENT_AGAIN,
    JobRecord,
    NewJob,
    Standing,
    Step,
    after,
    changed_row,
    created,
    jobs,
    metadata,
    micros,
    new_row,
    record_of,
    standing,
    texts,
)
from penstock.transactional import Database, insert_into
from penstock.transactional.schema import prepare

T = TypeVar("T")


class ProcessingJobStore:
    """Jobs and their texts in a database. Enter it to create the tables."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._reads = Together(self._get_many)
        self._steps = Together(self._take_in_a_transaction)
        self._begins = Together(self._begin_each)

    async def __aenter__(self) -> Self:
        await prepare(self.database, "jobs", metadata)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._reads.aclose()
        await self._steps.aclose()
        await self._begins.aclose()

    # Reading.

    async def get(self, job_id: str) -> JobRecord | None:
        return await self._reads.do(job_id)

    async def _get_many(self, job_ids: Sequence[str]) -> Sequence[JobRecord | None]:
        async with self.database.transaction(reading=True) as connection:
            found = await self.find(connection, job_ids)
        return [found.get(job_id) for job_id in job_ids]

    async def find(
        self, connection: AsyncConnection, job_ids: Sequence[str], *, lock: bool = False
    ) -> dict[str, JobRecord]:
        """Those that are there; locked, nobody else changes them before the transaction ends."""
        query = select(jobs).where(jobs.c.job_id.in_(set(job_ids)))
        if lock and connection.dialect.name == "postgresql":
            query = query.order_by(jobs.c.job_id).with_for_update()
        return {row.job_id: record_of(row) for row in await connection.execute(query)}

    async def text(self, job_id: str) -> Text | None:
        async with self.database.transaction(reading=True) as connection:
            found = await connection.scalar(select(texts.c.text).where(texts.c.job_id == job_id))
        return msgspec.json.decode(found, type=Text) if found is not None else None

    # Changing.

    async def create(
        self, connection: AsyncConnection, new: Sequence[NewJob]
    ) -> Sequence[tuple[JobRecord, bool] | AlreadyExistsError]:
        """Keep new jobs, in the transaction of `connection`.

        A job whose id exists is answered with what is kept, and False; when that was asked for by
        somebody else or differently, with an error.
        """
        await connection.execute(
            insert_into(connection, jobs).on_conflict_do_nothing(index_elements=["job_id"]),
            [new_row(one) for one in new],
        )
        kept = await self.find(connection, [one.job.job_id for one in new])
        return [created(one, kept[one.job.job_id]) for one in new]

    async def take(
        self, connection: AsyncConnection, steps: Sequence[Step]
    ) -> Sequence[JobRecord | None]:
        """Take steps, in the transaction of `connection`; None where a job is no longer where
        its step begins."""
        for step in steps:
            if not step.job.stage.may_become(step.to):
                raise InvalidArgumentError(
                    f"Job {step.job.job_id} is {step.job.stage} and cannot become {step.to}"
                )
        kept = await self.find(connection, [step.job.job_id for step in steps], lock=True)
        answers: list[JobRecord | None] = []
        taken: list[tuple[Step, JobRecord]] = []
        for step in steps:
            record = kept.get(step.job.job_id)
            at = (step.job.run, step.job.stage)
            if record is None or (record.job.run, record.job.stage) != at:
                answers.append(None)
                continue
            changed = kept[step.job.job_id] = after(record, step)
            taken.append((step, changed))
            answers.append(changed)
        if taken:
            await connection.execute(CHANGE, [changed_row(record) for _, record in taken])
            await self._keep_texts(connection, [step for step, _ in taken])
        return answers

    async def _take_in_a_transaction(self, steps: Sequence[Step]) -> Sequence[JobRecord | None]:
        async with self.database.transaction() as connection:
            return await self.take(connection, steps)

    async def _keep_texts(self, connection: AsyncConnection, taken: Sequence[Step]) -> None:
        changed = [step for step in taken if step.done.text or step.to is JobStage.QUEUED]
        if not changed:
            return
        ids = [step.job.job_id for step in changed]
        await connection.execute(delete(texts).where(texts.c.job_id.in_(ids)))
        rows = [
            {
                "job_id": step.job.job_id,
                "run": step.job.run,
                "text": msgspec.json.encode(step.done.text),
            }
            for step in changed
            if step.done.text is not None
        ]
        if rows:
            await connection.execute(insert(texts), rows)

    async def advance(self, job: ProcessingJob, to: JobStage, done: Done) -> JobRecord | None:
        """The job goes on to `to`; None when it is no longer where it was."""
        return await self._steps.do(Step(job=job, to=to, done=done))

    async def fail(self, job: ProcessingJob, reason: str, attempts: int) -> JobRecord | None:
        return await self._steps.do(
            Step(job=job, to=JobStage.FAILED, reason=reason, attempts=attempts)
        )

    # Attempts are counted here, not by a broker: one counts what it delivered, whatever became of
    # it, and gives up without telling anybody.

    async def begin(self, job: ProcessingJob) -> JobRecord | None:
        """Count an attempt at a job if it is due, before it is made; it ends with a step or with
        `end_attempt`, and is `trying` until then. Returns what is kept of it."""
        return await self._begins.do(job)

    async def _begin_each(self, wanted: Sequence[ProcessingJob]) -> Sequence[JobRecord | None]:
        kept = await self.begin_all(wanted)
        return [kept.get(job.job_id) for job in wanted]

    async def begin_all(self, wanted: Sequence[ProcessingJob]) -> dict[str, JobRecord]:
        async with self.database.transaction() as connection:
            kept = await self.find(connection, [job.job_id for job in wanted], lock=True)
            begun = {
                job.job_id: replace(
                    record, attempts=record.attempts + 1, retry_at=None, trying=True
                )
                for job in wanted
                if (record := kept.get(job.job_id)) is not None
                and standing(job, record) is Standing.DUE
            }
            if begun:
                await connection.execute(CHANGE, [changed_row(one) for one in begun.values()])
        return kept | begun

    async def end_attempt(
        self, job: ProcessingJob, *, counts: bool = True, again_in: float | None = None
    ) -> None:
        """An attempt ended and the job is where it was. `counts`: it failed, rather than being
        interrupted. `again_in`: seconds after which the job is to be sent again, for runners
        whose broker brings nothing back."""
        due = None if again_in is None else micros(now()) + int(again_in * 1e6)
        fewer = 0 if counts else 1
        async with self.database.transaction() as connection:
            await connection.execute(
                update(jobs)
                .where(
                    jobs.c.job_id == job.job_id,
                    jobs.c.run == job.run,
                    jobs.c.stage == job.stage.value,
                    jobs.c.trying,
                )
                .values(retry_us=due, trying=False, attempts=jobs.c.attempts - fewer)
            )

    async def to_retry(self, limit: int = 500) -> Sequence[JobRecord]:
        """Jobs that are due to be sent again, the longest due first."""
        query = (
            select(jobs)
            .where(jobs.c.retry_us <= micros(now()))
            .order_by(jobs.c.retry_us)
            .limit(limit)
        )
        async with self.database.transaction(reading=True) as connection:
            return [record_of(row) for row in await connection.execute(query)]

    async def sent_again(self, records: Sequence[JobRecord]) -> None:
        """They were sent; those that were postponed since stay so."""
        rows = [
            {"id": record.job.job_id, "due": micros(record.retry_at)}
            for record in records
            if record.retry_at is not None
        ]
        if rows:
            async with self.database.transaction() as connection:
                await connection.execute(SENT_AGAIN, rows)


def idempotent(
    store: ProcessingJobStore,
) -> Callable[
    [Callable[[ProcessingJob], Awaitable[T]]], Callable[[ProcessingJob], Awaitable[T | None]]
]:
    """Call a handler only for jobs that are still where their message says they are.

    A message that comes again after its effect was stored, or about a run that is over, is
    skipped and None returned. Store the effect with `advance` or `fail`, which are guarded as
    well, and a handler that crashes half-way or runs twice at once changes the job once.
    """

    def wrap(
        handler: Callable[[ProcessingJob], Awaitable[T]],
    ) -> Callable[[ProcessingJob], Awaitable[T | None]]:
        @wraps(handler)
        async def guarded(job: ProcessingJob) -> T | None:
            record = await store.get(job.job_id)
            if record is None:
                raise NotFoundError(f"Job {job.job_id} is not in the store; is this its database?")
            return await handler(job) if standing(job, record) is Standing.DUE else None

        return guarded

    return wrap
