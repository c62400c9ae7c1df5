"""Where jobs are kept: SQL, one row a job, changed only by legal steps.

Every change is guarded by what it expects to find, so that a message that comes twice, late or out
of order changes nothing the second time. Changes that wait for the database at the same time are
committed together: a sync to disk costs the same for one as for fifty.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import wraps
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    delete,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.engine import Row
from sqlalchemy.exc import IntegrityError
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
    now,
)
from penstock.jobs.stage import Done
from penstock.transactional import Database

T = TypeVar("T")
Operation: TypeAlias = Callable[[AsyncConnection], Awaitable[T]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_PAGE = 200
_MOST_TOGETHER = 200

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
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Index("penstock_jobs_by_user", "user_id", "created_us", "job_id"),
    Index("penstock_jobs_by_time", "created_us", "job_id"),
)

texts = Table(
    "penstock_texts",
    metadata,
    Column("job_id", String(36), primary_key=True),
    Column("run", Integer, nullable=False),
    Column("text", LargeBinary, nullable=False),
)


class JobRecord(Struct, frozen=True, kw_only=True):
    """A job as it is kept. `version` counts its changes."""

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

    def event(self) -> JobEvent:
        """What to tell the world of its present stage; always the same for the same stage."""
        job = self.job
        common: dict[str, Any] = {
            "job_id": job.job_id,
            "user_id": job.user_id,
            "media_type": job.media_type,
            "run": job.run,
            "at": self.updated_at,
            "previous": self.previous,
            "correlation_id": job.correlation_id,
            "traceparent": job.traceparent,
        }
        match job.stage:
            case JobStage.QUEUED:
                return JobQueued(**common)
            case JobStage.METADATA_READY:
                duration = getattr(job.info, "duration", None)
                size = getattr(job.info, "size", None)
                return MetadataReady(**common, duration=duration, size=size)
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


class ProcessingJobStore:
    """Jobs and their texts in a database. Enter it to create the tables."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._writer = _Writer(database)

    async def __aenter__(self) -> Self:
        await self.database.create_tables(metadata)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._writer.aclose()

    async def write(self, operation: Operation[T]) -> T:
        """Run a change in a transaction, perhaps together with others that wait. It may run
        twice, so it must do nothing but talk to the database."""
        return await self._writer.write(operation)

    # Reading.

    async def get(self, job_id: str) -> JobRecord | None:
        async with self.database.transaction(reading=True) as connection:
            return await self._get(connection, job_id)

    async def _get(self, connection: AsyncConnection, job_id: str) -> JobRecord | None:
        row = (await connection.execute(select(jobs).where(jobs.c.job_id == job_id))).first()
        return _record(row) if row is not None else None

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

    # Changing. Each takes a connection in a transaction, see `write`.

    async def create(
        self,
        connection: AsyncConnection,
        job: ProcessingJob,
        source: str,
        *,
        title: str | None = None,
        request: str | None = None,
    ) -> tuple[JobRecord, bool]:
        """Keep a new job; a job with this id that exists is returned instead, and False.

        `request` is a digest of what was asked for: the same id with another one is refused.
        """
        kept = await self._get(connection, job.job_id)
        if kept is None:
            at = _micros(job.created_at)
            values = {
                "job_id": job.job_id,
                "user_id": job.user_id,
                "media_type": job.media_type.value,
                "media_id": job.media_id,
                "source": source,
                "video_id": job.video_id if isinstance(job, YouTubeJob) else None,
                "stage": job.stage.value,
                "run": job.run,
                "version": 1,
                "title": title,
                "attempts": 0,
                "segments": 0,
                "characters": 0,
                "correlation_id": job.correlation_id,
                "traceparent": job.traceparent,
                "request": request,
                "created_us": at,
                "updated_us": at,
            }
            row = (await connection.execute(insert(jobs).values(values).returning(jobs))).one()
            return _record(row), True
        if kept.job.user_id != job.user_id or kept.request != request:
            raise AlreadyExistsError(
                f"Job {job.job_id} exists and was asked for differently; use another key"
            )
        return kept, False

    async def advance(
        self, connection: AsyncConnection, job: ProcessingJob, to: JobStage, done: Done
    ) -> JobRecord | None:
        """The job goes from its stage on to `to`; None when it is no longer where it was."""
        changes: dict[str, Any] = {"reason": None}
        if done.info is not None:
            changes["info"] = msgspec.json.encode(done.info)
        if done.title is not None:
            changes["title"] = done.title[:500]
        if done.text is not None:
            changes["language"] = done.text.language
            changes["segments"] = len(done.text.segments)
            changes["characters"] = done.text.characters
        record = await self._move(connection, job, to, changes)
        if record is not None and done.text is not None:
            await connection.execute(delete(texts).where(texts.c.job_id == job.job_id))
            kept = {
                "job_id": job.job_id,
                "run": job.run,
                "text": msgspec.json.encode(done.text),
            }
            await connection.execute(insert(texts).values(kept))
        return record

    async def fail(
        self, connection: AsyncConnection, job: ProcessingJob, reason: str, attempts: int
    ) -> JobRecord | None:
        changes = {"reason": reason[:48], "attempts": attempts}
        return await self._move(connection, job, JobStage.FAILED, changes)

    async def cancel(self, connection: AsyncConnection, job: ProcessingJob) -> JobRecord | None:
        return await self._move(connection, job, JobStage.CANCELLED, {})

    async def retry(
        self, connection: AsyncConnection, job: ProcessingJob, traceparent: str | None = None
    ) -> JobRecord | None:
        """Run it anew from the beginning."""
        await connection.execute(delete(texts).where(texts.c.job_id == job.job_id))
        changes = {
            "run": job.run + 1,
            "info": None,
            "reason": None,
            "attempts": 0,
            "segments": 0,
            "characters": 0,
            "traceparent": traceparent,
        }
        return await self._move(connection, job, JobStage.QUEUED, changes)

    async def _move(
        self,
        connection: AsyncConnection,
        job: ProcessingJob,
        to: JobStage,
        changes: dict[str, Any],
    ) -> JobRecord | None:
        if not job.stage.may_become(to):
            raise InvalidArgumentError(f"Job {job.job_id} is {job.stage} and cannot become {to}")
        row = (
            await connection.execute(
                update(jobs)
                .where(
                    jobs.c.job_id == job.job_id,
                    jobs.c.run == job.run,
                    jobs.c.stage == job.stage.value,
                )
                .values(
                    stage=to.value,
                    previous=job.stage.value,
                    version=jobs.c.version + 1,
                    updated_us=_micros(now()),
                    **changes,
                )
                .returning(jobs)
            )
        ).first()
        return _record(row) if row is not None else None


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


class _Writer:
    """Runs changes that wait together in one transaction, in the order they came."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[tuple[Operation[Any], asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    async def write(self, operation: Operation[T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._waiting.append((operation, answer))
        if self._task is None:
            # Owned here: it ends when nothing waits, or with `aclose`.
            self._task = loop.create_task(self._run())
        return await answer

    async def aclose(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = [one for one in self._waiting[:_MOST_TOGETHER] if not one[1].done()]
                del self._waiting[:_MOST_TOGETHER]
                if not await self._together(batch):
                    for operation, answer in batch:
                        await self._alone(operation, answer)
        finally:
            self._task = None

    async def _together(self, batch: list[tuple[Operation[Any], asyncio.Future[Any]]]) -> bool:
        """False: nothing was changed, and each is to be run by itself to see which one failed."""
        if len(batch) == 1:
            return False
        try:
            async with self._database.transaction() as connection:
                results = [await operation(connection) for operation, _ in batch]
        except Exception:
            return False
        for (_, answer), result in zip(batch, results, strict=True):
            if not answer.done():
                answer.set_result(result)
        return True

    async def _alone(self, operation: Operation[Any], answer: asyncio.Future[Any]) -> None:
        try:
            try:
                async with self._database.transaction() as connection:
                    result = await operation(connection)
            except IntegrityError:
                # Another process wrote the same row first; now it can be seen.
                async with self._database.transaction() as connection:
                    result = await operation(connection)
        except Exception as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)


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
        return int(at), job_id
    except (ValueError, binascii.Error):
        raise InvalidArgumentError("This cursor is not one of ours; begin without one") from None
