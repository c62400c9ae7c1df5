"""Where jobs are kept: SQL, one row a job, changed only by legal steps.

Every change is guarded by what it expects to find, so that a message that comes twice, late or out
of order changes nothing the second time. Changes that wait for the database at the same time are
committed together: a sync to disk costs the same for one as for fifty.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import wraps
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    delete,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from penstock.jobs import stage as stages
from penstock.jobs.job import (
    JOB_TYPES,
    JobCancelled,
    JobEvent,
    JobFailed,
    JobQueued,
    JobStage,
    MediaType,
    MetadataReady,
    ProcessingJob,
    TranscriptComplete,
    YouTubeJob,
    at_stage,
    now,
)
from penstock.jobs.stage import Done
from penstock.jobs.together import Together
from penstock.transactional import Database

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_PAGE = 200

metadata = MetaData()

jobs = Table(
    "penstock_jobs",
    metadata,
    Column("job_id", String(36), primary_key=True),
    Column("user_id", String(64), nullable=False),
    Column("media_type", String(16), nullable=False),
    Column("media_id", String(36), nullable=False),
    Column("source", Text, nullable=False),
    Column("video_id", String(11)),
    Column("stage", String(24), nullable=False),
    Column("previous", String(24)),
    Column("run", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("info", LargeBinary),
    Column("title", Text),
    Column("reason", String(48)),
    Column("attempts", Integer, nullable=False),
    Column("language", String(48)),
    Column("segments", Integer, nullable=False),
    Column("characters", Integer, nullable=False),
    Column("correlation_id", String(64)),
    Column("traceparent", String(55)),
    Column("request", String(64)),
    Column("retry_us", BigInteger),
    Column("trying", Boolean, nullable=False),
    Column("ready_us", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Index("penstock_jobs_by_user", "user_id", "created_us", "job_id"),
    Index("penstock_jobs_by_time", "created_us", "job_id"),
    Index("penstock_jobs_to_retry", "retry_us"),
)

texts = Table(
    "penstock_texts",
    metadata,
    Column("job_id", String(36), primary_key=True),
    Column("run", Integer, nullable=False),
    Column("text", LargeBinary, nullable=False),
)


class JobRecord(Struct, frozen=True, kw_only=True):
    """A job as it is kept. `version` counts its steps. `attempts`: those begun at this stage, as
    far as its runner counts them here; `trying`: whether the last has not ended; `retry_at`: when
    the next is due."""

    job: ProcessingJob
    source: str
    version: int
    updated_at: datetime
    previous: JobStage | None = None
    title: str | None = None
    reason: str | None = None
    attempts: int = 0
    language: str | None = None
    segments: int = 0
    characters: int = 0
    request: str | None = None
    retry_at: datetime | None = None
    trying: bool = False
    ready_at: datetime | None = None
    """When its metadata was ready, in this run."""

    def event(self) -> JobEvent:
        """What to tell the world of its present stage; always the same for the same stage."""
        common = self._common(self.updated_at, self.previous)
        match self.job.stage:
            case JobStage.QUEUED:
                return JobQueued(**common)
            case JobStage.METADATA_READY:
                return self.metadata_event()
            case JobStage.TRANSCRIPT_COMPLETE:
                return TranscriptComplete(
                    **common,
                    language=self.language,
                    segments=self.segments,
                    characters=self.characters,
                )
            case JobStage.FAILED:
                return JobFailed(**common, reason=self.reason or "unknown", attempts=self.attempts)
            case JobStage.CANCELLED:
                return JobCancelled(**common)

    def metadata_event(self) -> MetadataReady:
        """What was to be told when its metadata was ready."""
        return MetadataReady(
            **self._common(self.ready_at or self.updated_at, JobStage.QUEUED),
            duration=getattr(self.job.info, "duration", None),
            size=getattr(self.job.info, "size", None),
        )

    def _common(self, at: datetime, previous: JobStage | None) -> dict[str, Any]:
        job = self.job
        return {
            "job_id": job.job_id,
            "user_id": job.user_id,
            "media_type": job.media_type,
            "run": job.run,
            "at": at,
            "previous": previous,
            "correlation_id": job.correlation_id,
            "traceparent": job.traceparent,
        }


class Standing(Enum):
    """How a message about a job stands to what is kept of it."""

    DUE = "due"
    DONE = "done"
    """The job has gone on in this run: the work was done, its messages may not have been sent."""
    STALE = "stale"
    """The job was cancelled, or runs anew."""
    UNKNOWN = "unknown"


def standing(job: ProcessingJob, record: JobRecord | None) -> Standing:
    if record is None:
        return Standing.UNKNOWN
    kept = record.job
    if kept.run != job.run or kept.stage is JobStage.CANCELLED:
        return Standing.STALE if kept.run >= job.run else Standing.UNKNOWN
    if kept.stage is job.stage:
        return Standing.DUE
    return Standing.DONE if kept.stage.rank > job.stage.rank else Standing.UNKNOWN


class Step(Struct, frozen=True, kw_only=True):
    """A step to be taken: the job goes from the stage it is at to `to`."""

    job: ProcessingJob
    to: JobStage
    done: Done = Done()
    reason: str | None = None
    attempts: int = 0


class NewJob(Struct, frozen=True, kw_only=True):
    """A job to be kept. `request` is a digest of what was asked for."""

    job: ProcessingJob
    source: str
    title: str | None = None
    request: str | None = None


class ProcessingJobStore:
    """Jobs and their texts in a database. Enter it to create the tables."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._reads = Together(self._get_many)
        self._steps = Together(self._take_in_a_transaction)
        self._begins = Together(self._begin_each)

    async def __aenter__(self) -> Self:
        await self.database.create_tables(metadata)
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
        return {row.job_id: _record(row) for row in await connection.execute(query)}

    async def text(self, job_id: str) -> stages.Text | None:
        async with self.database.transaction(reading=True) as connection:
            found = await connection.scalar(select(texts.c.text).where(texts.c.job_id == job_id))
        return msgspec.json.decode(found, type=stages.Text) if found is not None else None

    async def list(
        self,
        *,
        user_id: str | None = None,
        stage: JobStage | None = None,
        media_type: MediaType | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[JobRecord], str | None]:
        """The newest first, and where the next page begins."""
        query = select(jobs).order_by(jobs.c.created_us.desc(), jobs.c.job_id.desc())
        if user_id is not None:
            query = query.where(jobs.c.user_id == user_id)
        if stage is not None:
            query = query.where(jobs.c.stage == stage.value)
        if media_type is not None:
            query = query.where(jobs.c.media_type == media_type.value)
        if cursor is not None:
            query = query.where(tuple_(jobs.c.created_us, jobs.c.job_id) < _place(cursor))
        limit = max(1, min(limit, MAX_PAGE))
        async with self.database.transaction(reading=True) as connection:
            rows = (await connection.execute(query.limit(limit + 1))).all()
        page = [_record(row) for row in rows[:limit]]
        following = _cursor(rows[limit - 1]) if len(rows) > limit else None
        return page, following

    # Changing.

    async def create(
        self, connection: AsyncConnection, new: Sequence[NewJob]
    ) -> Sequence[tuple[JobRecord, bool] | AlreadyExistsError]:
        """Keep new jobs, in the transaction of `connection`.

        A job whose id exists is answered with what is kept, and False; when that was asked for by
        somebody else or differently, with an error.
        """
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        await connection.execute(
            dialect.insert(jobs).on_conflict_do_nothing(index_elements=["job_id"]),
            [_new_row(one) for one in new],
        )
        kept = await self.find(connection, [one.job.job_id for one in new])
        return [_created(one, kept[one.job.job_id]) for one in new]

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
            after = kept[step.job.job_id] = _after(record, step)
            taken.append((step, after))
            answers.append(after)
        if taken:
            await connection.execute(_CHANGE, [_changed_row(record) for _, record in taken])
            await self._keep_texts(connection, [step for step, _ in taken])
        return answers

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
                await connection.execute(_CHANGE, [_changed_row(one) for one in begun.values()])
        return kept | begun

    async def end_attempt(
        self, job: ProcessingJob, *, counts: bool = True, again_in: float | None = None
    ) -> None:
        """An attempt ended and the job is where it was. `counts`: it failed, rather than being
        interrupted. `again_in`: seconds after which the job is to be sent again, for runners
        whose broker brings nothing back."""
        due = None if again_in is None else _micros(now()) + int(again_in * 1e6)
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
            .where(jobs.c.retry_us <= _micros(now()))
            .order_by(jobs.c.retry_us)
            .limit(limit)
        )
        async with self.database.transaction(reading=True) as connection:
            return [_record(row) for row in await connection.execute(query)]

    async def sent_again(self, records: Sequence[JobRecord]) -> None:
        """They were sent; those that were postponed since stay so."""
        async with self.database.transaction() as connection:
            for record in records:
                if record.retry_at is not None:
                    await connection.execute(
                        update(jobs)
                        .where(
                            jobs.c.job_id == record.job.job_id,
                            jobs.c.retry_us == _micros(record.retry_at),
                        )
                        .values(retry_us=None)
                    )

    async def _take_in_a_transaction(self, steps: Sequence[Step]) -> Sequence[JobRecord | None]:
        async with self.database.transaction() as connection:
            return await self.take(connection, steps)


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


_CHANGED = (
    *("stage", "previous", "run", "version", "info", "title", "reason", "attempts", "language"),
    *("segments", "characters", "updated_us", "retry_us", "trying", "ready_us"),
)
_CHANGE = (
    update(jobs)
    .where(jobs.c.job_id == bindparam("id"))
    .values({name: bindparam(f"new_{name}") for name in _CHANGED})
)


def _new_row(new: NewJob) -> dict[str, Any]:
    job = new.job
    return {
        "job_id": job.job_id,
        "user_id": job.user_id,
        "media_type": job.media_type.value,
        "media_id": job.media_id,
        "source": new.source,
        "video_id": job.video_id if isinstance(job, YouTubeJob) else None,
        "stage": job.stage.value,
        "run": job.run,
        "version": 1,
        "title": new.title,
        "attempts": 0,
        "segments": 0,
        "characters": 0,
        "correlation_id": job.correlation_id,
        "traceparent": job.traceparent,
        "request": new.request,
        "trying": False,
        "created_us": _micros(job.created_at),
        "updated_us": _micros(job.created_at),
    }


def _created(new: NewJob, kept: JobRecord) -> tuple[JobRecord, bool] | AlreadyExistsError:
    # A media id is made for each request: it is ours if and only if the row is.
    if kept.job.media_id == new.job.media_id:
        return kept, True
    if kept.job.user_id != new.job.user_id or kept.request != new.request:
        return AlreadyExistsError(
            f"Job {new.job.job_id} exists and was asked for differently; use another key"
        )
    return kept, False


def _after(record: JobRecord, step: Step) -> JobRecord:
    """What is kept of a job once a step is taken."""
    done, again = step.done, step.to is JobStage.QUEUED
    changes: dict[str, Any] = {
        "job": at_stage(record.job, step.to, done.info),
        "version": record.version + 1,
        "previous": record.job.stage,
        "updated_at": now(),
        "reason": step.reason[:48] if step.reason else None,
        "attempts": step.attempts,
        "retry_at": None,
        "trying": False,
    }
    if step.to is JobStage.METADATA_READY:
        changes["ready_at"] = changes["updated_at"]
    if again:
        changes |= {"language": None, "segments": 0, "characters": 0, "ready_at": None}
    if done.title is not None:
        changes["title"] = "".join(c for c in done.title if c.isprintable())[:500]
    if done.text is not None:
        changes["language"] = done.text.language
        changes["segments"] = len(done.text.segments)
        changes["characters"] = done.text.characters
    return replace(record, **changes)


def _changed_row(record: JobRecord) -> dict[str, Any]:
    job = record.job
    values = {
        "stage": job.stage.value,
        "previous": None if record.previous is None else record.previous.value,
        "run": job.run,
        "version": record.version,
        "info": None if job.info is None else msgspec.json.encode(job.info),
        "title": record.title,
        "reason": record.reason,
        "attempts": record.attempts,
        "language": record.language,
        "segments": record.segments,
        "characters": record.characters,
        "updated_us": _micros(record.updated_at),
        "retry_us": None if record.retry_at is None else _micros(record.retry_at),
        "trying": record.trying,
        "ready_us": None if record.ready_at is None else _micros(record.ready_at),
    }
    return {"id": job.job_id} | {f"new_{name}": value for name, value in values.items()}


def _record(row: Row[Any]) -> JobRecord:
    kept = row._mapping
    kind = JOB_TYPES[MediaType(kept["media_type"])]
    fields: dict[str, Any] = {
        "jobId": kept["job_id"],
        "userId": kept["user_id"],
        "mediaType": kept["media_type"],
        "mediaId": kept["media_id"],
        "createdAt": _moment(kept["created_us"]),
        "stage": kept["stage"],
        "run": kept["run"],
        "correlationId": kept["correlation_id"],
        "traceparent": kept["traceparent"],
        "info": msgspec.json.decode(kept["info"]) if kept["info"] else None,
    }
    if kept["video_id"] is not None:
        fields["videoId"] = kept["video_id"]
    return JobRecord(
        job=msgspec.convert(fields, kind),
        source=kept["source"],
        version=kept["version"],
        updated_at=_moment(kept["updated_us"]),
        previous=JobStage(kept["previous"]) if kept["previous"] else None,
        title=kept["title"],
        reason=kept["reason"],
        attempts=kept["attempts"],
        language=kept["language"],
        segments=kept["segments"],
        characters=kept["characters"],
        request=kept["request"],
        retry_at=None if kept["retry_us"] is None else _moment(kept["retry_us"]),
        trying=kept["trying"],
        ready_at=None if kept["ready_us"] is None else _moment(kept["ready_us"]),
    )


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _cursor(row: Row[Any]) -> str:
    kept = row._mapping
    text = f"{kept['created_us']}:{kept['job_id']}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _place(cursor: str) -> tuple[int, str]:
    try:
        text = base64.urlsafe_b64decode(cursor[:200] + "=" * (-len(cursor) % 4)).decode()
        at, _, job_id = text.partition(":")
        return int(at) % 2**63, job_id.replace("\0", "")
    except (ValueError, binascii.Error):
        raise InvalidArgumentError("This cursor is not one of ours; begin without one") from None
