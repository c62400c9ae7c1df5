"""What is kept of a job: the tables, a row as a value, and the value after a step. Pure, but for
the shape of SQL."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    any_,
    bindparam,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Row

from penstock.errors import AlreadyExistsError, FailedPreconditionError
from penstock.jobs.model.job import Job, info_of, info_type, now, own_fields
from penstock.jobs.model.names import JobStage, MediaType
from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.pipeline.stage import Done
from penstock.message import Draft
from penstock.transactional.many_rows import ManyRows

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

metadata = MetaData()

jobs = Table(
    "penstock_jobs",
    metadata,
    Column("job_id", String(36), primary_key=True),
    Column("user_id", String(64), nullable=False),
    Column("media_type", String(16), nullable=False),
    Column("media_id", String(36), nullable=False),
    Column("source", Text, nullable=False),
    Column("fields", LargeBinary),
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
    Column("trying", Boolean, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
)

results = Table(
    "penstock_results",
    metadata,
    Column("job_id", String(36), primary_key=True),
    Column("stage", String(48), primary_key=True),
    Column("run", Integer, nullable=False),
    Column("result", LargeBinary, nullable=False),
)

texts = Table(
    "penstock_texts",
    metadata,
    Column("job_id", String(36), primary_key=True),
    Column("run", Integer, nullable=False),
    Column("text", LargeBinary, nullable=False),
)


_NAMES = jobs.c.keys()


class JobRecord(Struct, frozen=True, kw_only=True):
    """A job as it is kept. `version` counts what was said of it: its steps, and its messages that
    were sent again. `attempts`: those begun at this stage; `trying`: whether the last has not
    ended."""

    job: Job
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
    trying: bool = False


class UnknownStageError(FailedPreconditionError):
    """Another program took the job further than this one can follow."""


class Standing(Enum):
    """How a message about a job stands to what is kept of it."""

    DUE = "due"
    DONE = "done"
    """The job has gone on in this run: the work was done, and said."""
    STALE = "stale"
    """The job was cancelled, or runs anew."""
    UNKNOWN = "unknown"


def standing(pipeline: Pipeline, job: Job, record: JobRecord | None) -> Standing:
    if record is None:
        return Standing.UNKNOWN
    kept = record.job
    if kept.run != job.run or kept.stage is JobStage.CANCELLED:
        return Standing.STALE if kept.run >= job.run else Standing.UNKNOWN
    if kept.stage is job.stage:
        return Standing.DUE
    gone_on = pipeline.rank(kept.stage) > pipeline.rank(job.stage)
    return Standing.DONE if gone_on else Standing.UNKNOWN


class Step(Struct, frozen=True, kw_only=True):
    """A step to be taken: the job goes from the stage it is at to `to`. `by`: the stage that did
    the work, under whose name its result is kept. `took`: the seconds of that work; `retries`: the
    attempts at it before."""

    job: Job
    to: JobStage
    done: Done = Done()
    by: str = ""
    took: float | None = None
    retries: int = 0
    reason: str | None = None
    attempts: int = 0
    dead_letter: tuple[str, Draft] | None = None
    """A topic and the message that is kept there, because the job was given up."""
    known: JobRecord | None = None
    """What was kept of the job when the work began. It need not be read again where it is still
    the last that was said of it."""


class NewJob(Struct, frozen=True, kw_only=True):
    """A job to be kept. `request` is a digest of what was asked for."""

    job: Job
    source: str
    title: str | None = None
    request: str | None = None


_CHANGED = (
    *("stage", "previous", "run", "version", "info", "title", "reason", "attempts", "language"),
    *("segments", "characters", "updated_us", "trying"),
)
CHANGE = ManyRows(
    update(jobs)
    .where(jobs.c.job_id == bindparam("id"))
    .values({name: bindparam(f"new_{name}") for name in _CHANGED})
)
_WHERE_IT_WAS = (
    jobs.c.job_id == bindparam("id"),
    jobs.c.run == bindparam("old_run"),
    jobs.c.stage == bindparam("old_stage"),
    jobs.c.version == bindparam("old_version"),
)
CHANGE_FROM = ManyRows(
    update(jobs).where(*_WHERE_IT_WAS).values({name: bindparam(f"new_{name}") for name in _CHANGED})
)
_BEGUN = {"attempts": bindparam("begun"), "trying": True}
BEGIN = ManyRows(update(jobs).where(jobs.c.job_id == bindparam("id")).values(_BEGUN))
BEGIN_FROM = ManyRows(
    update(jobs)
    .where(*_WHERE_IT_WAS, jobs.c.attempts == bindparam("old_attempts"), jobs.c.trying.is_(False))
    .values(_BEGUN)
)
_ids: dict[str, ColumnElement[bool]] = {
    # One value, however many ids: a statement for each number of them would be made anew each time.
    "sqlite": jobs.c.job_id.in_(
        select(func.json_each(bindparam("ids", type_=Text())).table_valued("value").c.value)
    ),
    "postgresql": jobs.c.job_id == any_(bindparam("ids", type_=ARRAY(String(36)))),
}
FIND = {dialect: select(jobs).where(among) for dialect, among in _ids.items()}
FIND_LOCKED = FIND | {"postgresql": FIND["postgresql"].order_by(jobs.c.job_id).with_for_update()}
_place = (jobs.c.job_id, jobs.c.run, jobs.c.stage, jobs.c.version)
PLACES_LOCKED = {dialect: select(*_place).where(among) for dialect, among in _ids.items()}
PLACES_LOCKED["postgresql"] = PLACES_LOCKED["postgresql"].order_by(jobs.c.job_id).with_for_update()
KEEP_TEXT, KEEP_RESULT = ManyRows(insert(texts)), ManyRows(insert(results))
CREATE = {
    "sqlite": ManyRows(sqlite.insert(jobs).on_conflict_do_nothing(index_elements=["job_id"])),
    "postgresql": ManyRows(
        postgresql.insert(jobs).on_conflict_do_nothing(index_elements=["job_id"])
    ),
}


def new_row(new: NewJob) -> dict[str, Any]:
    job = new.job
    return {
        "job_id": job.job_id,
        "user_id": job.user_id,
        "media_type": job.media_type.value,
        "media_id": job.media_id,
        "source": new.source,
        "fields": _own_fields(job),
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
        "created_us": micros(job.created_at),
        "updated_us": micros(job.created_at),
    }


def _own_fields(job: Job) -> bytes | None:
    names = own_fields(type(job))
    if not names:
        return None
    values = msgspec.to_builtins(job)
    return msgspec.json.encode({name: values[name] for name in names if name in values})


def first_record(new: NewJob) -> JobRecord:
    """What is kept of a job that is new."""
    return JobRecord(
        job=new.job,
        source=new.source,
        version=1,
        updated_at=new.job.created_at,
        title=new.title,
        request=new.request,
    )


def created(new: NewJob, kept: JobRecord | None) -> tuple[JobRecord, bool] | AlreadyExistsError:
    if kept is None:
        return AlreadyExistsError(
            f"Job {new.job.job_id} exists and is of another pipeline; use another key"
        )
    # A media id is made for each request: it is ours if and only if the row is.
    if kept.job.media_id == new.job.media_id:
        return kept, True
    if kept.job.user_id != new.job.user_id or kept.request != new.request:
        return AlreadyExistsError(
            f"Job {new.job.job_id} exists and was asked for differently; use another key"
        )
    return kept, False


def after(pipeline: Pipeline, record: JobRecord, step: Step) -> JobRecord:
    """What is kept of a job once a step is taken."""
    done, again = step.done, step.to is JobStage.QUEUED
    changes: dict[str, Any] = {
        "job": pipeline.moved(record.job, step.to, done.info),
        "version": record.version + 1,
        "previous": record.job.stage,
        "updated_at": now(),
        "reason": step.reason[:48] if step.reason else None,
        "attempts": step.attempts,
        "trying": False,
    }
    if again:
        changes |= {"language": None, "segments": 0, "characters": 0}
    if done.title is not None:
        changes["title"] = "".join(c for c in done.title if c.isprintable())[:500]
    if done.text is not None:
        changes["language"] = done.text.language
        changes["segments"] = len(done.text.segments)
        changes["characters"] = done.text.characters
    return replace(record, **changes)


def changed_row(record: JobRecord) -> dict[str, Any]:
    job, info = record.job, info_of(record.job)
    return {
        "id": job.job_id,
        "new_stage": job.stage.value,
        "new_previous": None if record.previous is None else record.previous.value,
        "new_run": job.run,
        "new_version": record.version,
        "new_info": None if info is None else msgspec.json.encode(info),
        "new_title": record.title,
        "new_reason": record.reason,
        "new_attempts": record.attempts,
        "new_language": record.language,
        "new_segments": record.segments,
        "new_characters": record.characters,
        "new_updated_us": micros(record.updated_at),
        "new_trying": record.trying,
    }


def place_of(record: JobRecord) -> dict[str, Any]:
    """Where it is, for a change from there: nothing was said of it since."""
    job = record.job
    return {"old_run": job.run, "old_stage": job.stage.value, "old_version": record.version}


def record_of(pipeline: Pipeline, row: Row[Any]) -> JobRecord:
    kept = dict(zip(_NAMES, row, strict=True))
    return JobRecord(
        job=_job_of(pipeline, kept),
        source=kept["source"],
        version=kept["version"],
        updated_at=moment(kept["updated_us"]),
        previous=JobStage.named(kept["previous"]) if kept["previous"] else None,
        title=kept["title"],
        reason=kept["reason"],
        attempts=kept["attempts"],
        language=kept["language"],
        segments=kept["segments"],
        characters=kept["characters"],
        request=kept["request"],
        trying=kept["trying"],
    )


def _job_of(pipeline: Pipeline, kept: Mapping[str, Any]) -> Job:
    """It was checked before it was kept; what is JSON in its row is read as what it must be."""
    kind = pipeline.job_types[MediaType(kept["media_type"])]
    stage = _stage(pipeline, kept["job_id"], kept["stage"])
    created = moment(kept["created_us"])
    info = _info_decoder(kind).decode(kept["info"]) if kept["info"] else None
    if own_fields(kind):
        return _own_job_of(kind, kept, stage=stage, createdAt=created, info=info)
    job = kind(
        job_id=kept["job_id"],
        user_id=kept["user_id"],
        media_id=kept["media_id"],
        created_at=created,
        stage=stage,
        run=kept["run"],
        correlation_id=kept["correlation_id"],
        traceparent=kept["traceparent"],
    )
    return job if info is None else replace(job, info=info)


def _own_job_of(kind: type[Job], kept: Mapping[str, Any], **read: Any) -> Job:
    fields: dict[str, Any] = {
        "jobId": kept["job_id"],
        "userId": kept["user_id"],
        "mediaType": kept["media_type"],
        "mediaId": kept["media_id"],
        "run": kept["run"],
        "correlationId": kept["correlation_id"],
        "traceparent": kept["traceparent"],
        **read,
    }
    # A row of an earlier version has none of its own; they follow from the source.
    own = kept["fields"]
    fields |= msgspec.json.decode(own) if own else kind.of_source(kept["source"])[1]
    return msgspec.convert(fields, kind)


@cache
def _info_decoder(kind: type[Job]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(info_type(kind))


def _stage(pipeline: Pipeline, job_id: str, name: str) -> JobStage:
    """Of a job that another program may have taken further than this one knows of."""
    known = (*pipeline.order, JobStage.FAILED, JobStage.CANCELLED)
    if name not in known:
        raise UnknownStageError(
            f"Job {job_id} is {name}, and pipeline {pipeline.name!r} has no such stage; run this "
            "process with the pipeline that has"
        )
    return JobStage(name)


def micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
