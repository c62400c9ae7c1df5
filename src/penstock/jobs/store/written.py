"""What changes of jobs write, made ready: rows, and what is said to the world.

Nobody else can write to SQLite while a transaction does, and to make rows and messages takes longer
than to write them. So that is done before the transaction begins, where what it will find is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.jobs.model.names import JobStage
from penstock.jobs.settings import JobSettings
from penstock.jobs.store.records import (
    CHANGE,
    CHANGE_FROM,
    KEEP_RESULT,
    KEEP_TEXT,
    JobRecord,
    NewJob,
    Step,
    after,
    changed_row,
    first_record,
    new_row,
    place_of,
    results,
    texts,
)
from penstock.jobs.store.said import Said, of_stage, say_new
from penstock.transactional import Outbox

Taken = tuple[Step, JobRecord]
"""A step, and what is kept of its job once it is taken."""


class Newborn(Struct, frozen=True):
    """A job that is new, if nobody has made it before."""

    new: NewJob
    row: dict[str, Any]
    record: JobRecord
    said: Sequence[Said]

    @classmethod
    def of(cls, settings: JobSettings, new: NewJob) -> Newborn:
        record = first_record(new)
        return cls(new, new_row(new), record, of_stage(settings, record))


class StepsTaken:
    """What steps write. `before`: what was kept of each of their jobs, where only that may be
    changed; else somebody has locked their rows."""

    def __init__(
        self,
        settings: JobSettings,
        taken: Sequence[Taken],
        before: Sequence[JobRecord] | None = None,
    ) -> None:
        self.records = [record for _, record in taken]
        self._rows = [changed_row(record) for record in self.records]
        self._is_conditional = before is not None
        if before is not None:
            for row, record in zip(self._rows, before, strict=True):
                row |= place_of(record)
            # In one order everywhere, as where they are locked: else two may wait for each other.
            self._rows.sort(key=itemgetter("id"))
        steps = [step for step, _ in taken]
        self._texts_of = [s.job.job_id for s in steps if s.done.text or s.to is JobStage.QUEUED]
        self._texts = [*map(_text_row, (s for s in steps if s.done.text is not None))]
        self._anew = [s.job.job_id for s in steps if s.to is JobStage.QUEUED]
        self._results = [*map(_result_row, (s for s in steps if s.done.result is not None))]
        self._said = [*_said(settings, taken)]

    @classmethod
    def foreseen(cls, settings: JobSettings, steps: Sequence[Step]) -> StepsTaken | None:
        """What they will write if nothing was said of their jobs since the work on them began;
        None where what was kept of one then is not known."""
        before = [step.known for step in steps if step.known is not None and _begins_at(step)]
        if len(before) < len(steps):
            return None
        pipeline = settings.pipeline
        taken = [(s, after(pipeline, old, s)) for s, old in zip(steps, before, strict=True)]
        return cls(settings, taken, before)

    async def write(self, connection: AsyncConnection, outbox: Outbox) -> None:
        """`OvertakenError` when a job is not as it was before; then nothing may be committed."""
        if self._is_conditional:
            await CHANGE_FROM.execute_each(connection, self._rows)
        else:
            await CHANGE.execute(connection, self._rows)
        if self._texts_of:
            await connection.execute(delete(texts).where(texts.c.job_id.in_(self._texts_of)))
        if self._texts:
            await KEEP_TEXT.execute(connection, self._texts)
        if self._anew:
            await connection.execute(delete(results).where(results.c.job_id.in_(self._anew)))
        if self._results:
            await KEEP_RESULT.execute(connection, self._results)
        await say_new(outbox, connection, self._said)


def _begins_at(step: Step) -> bool:
    """Whether the job was where the step begins when it was last looked at."""
    known = step.known
    return known is not None and (known.job.run, known.job.stage) == (step.job.run, step.job.stage)


def _said(settings: JobSettings, taken: Sequence[Taken]) -> Iterator[Said]:
    for step, record in taken:
        yield from of_stage(settings, record, step)
        if step.dead_letter is not None:
            yield Said(*step.dead_letter)


def _text_row(step: Step) -> dict[str, Any]:
    text = msgspec.json.encode(step.done.text)
    return {"job_id": step.job.job_id, "run": step.job.run, "text": text}


def _result_row(step: Step) -> dict[str, Any]:
    return {
        "job_id": step.job.job_id,
        "stage": step.by,
        "run": step.job.run,
        "result": msgspec.json.encode(step.done.result),
    }
