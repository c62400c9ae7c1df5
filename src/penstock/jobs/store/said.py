"""What is said of jobs: the messages that a change of a job adds to its transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo, fields
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.jobs.model.event import JobQueued, StageEvent
from penstock.jobs.model.job import info_of
from penstock.jobs.model.names import JobStage
from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.settings import JobSettings
from penstock.jobs.store.records import JobRecord, Step
from penstock.message import Draft
from penstock.transactional import Outbox

# What a text says of itself, and its job's row does not.
OF_TEXTS = ("pages", "truncated", "doubtful")


class Said(Struct, frozen=True):
    """A message, where it goes, and after how many seconds."""

    topic: str
    draft: Draft
    after: float = 0.0


def event_of(pipeline: Pipeline, record: JobRecord, step: Step | None = None) -> StageEvent:
    """What there is to tell of a job's present stage; `step` is the one that led there."""
    kind = pipeline.event_types[record.job.stage]
    known = _known_of(record)
    if step is not None and step.done.text is not None:
        known |= {name: getattr(step.done.text, name) for name in OF_TEXTS}
    own = _fitting(kind, known)
    if step is None:
        return kind(**_common(record), **own)
    # What a handler said comes before what is known of the job's info and text.
    own |= step.done.facts
    return kind(**_common(record), **own, took=step.took, retries=step.retries)


def known_event_of(pipeline: Pipeline, record: JobRecord) -> StageEvent:
    """What the store alone can tell of it. Where such an event must have a fact that only a handler
    knew, it is one that says what every event does, and nothing else."""
    kind = pipeline.event_types[record.job.stage]
    own = _fitting(kind, _known_of(record))
    if any(one.required and one.name not in own for one in _fields_of(kind)):
        return JobQueued(**_common(record))
    return kind(**_common(record), **own)


def _common(record: JobRecord) -> dict[str, Any]:
    job = record.job
    return {
        "job_id": job.job_id,
        "user_id": job.user_id,
        "media_type": job.media_type,
        "run": job.run,
        "at": record.updated_at,
        "previous": record.previous,
        "correlation_id": job.correlation_id,
        "traceparent": job.traceparent,
    }


def _fitting(kind: type[StageEvent], known: Mapping[str, Any]) -> dict[str, Any]:
    """What such an event says of what is known. A fact that is only called the same, a size that is
    a word for instance, is something else: its stage's handler says it."""
    return {
        one.name: known[one.name]
        for one in _fields_of(kind)
        if known.get(one.name) is not None and _is(one.type, known[one.name])
    }


@cache
def _fields_of(kind: type[StageEvent]) -> tuple[FieldInfo, ...]:
    own = kind.facts()
    return tuple(one for one in fields(kind) if one.name in own)


def _is(declared: Any, value: Any) -> bool:
    try:
        msgspec.convert(value, declared)
    except msgspec.ValidationError:
        return False
    return True


def _known_of(record: JobRecord) -> dict[str, Any]:
    info = info_of(record.job)
    known: dict[str, Any] = {} if info is None else msgspec.structs.asdict(info)
    if record.language is not None or record.segments:
        known |= {
            "language": record.language,
            "segments": record.segments,
            "characters": record.characters,
        }
    if record.job.stage is JobStage.FAILED:
        known |= {"reason": record.reason or "unknown", "attempts": record.attempts}
    return known


def of_stage(settings: JobSettings, record: JobRecord, step: Step | None = None) -> list[Said]:
    """What a job says when it has reached its stage, by `step` unless it begins there: an event,
    and work for the next stage if there is one."""
    pipeline = settings.pipeline
    event = event_of(pipeline, record, step)
    said = [Said(settings.topics.events, pipeline.codec.encode_event(event))]
    if not pipeline.is_end(record.job.stage):
        topic = settings.topics.of(record.job.media_type)
        said.append(Said(topic, pipeline.codec.encode_job(record.job)))
    return said


def again(settings: JobSettings, record: JobRecord, after: float) -> Said:
    """The job's message once more. The number is the record's, so that whoever sends it, a person
    or a runner, no two of them are the same message."""
    topic = settings.topics.of(record.job.media_type)
    return Said(topic, settings.pipeline.codec.encode_job(record.job, record.version), after)


async def say(outbox: Outbox, connection: AsyncConnection, messages: Iterable[Said]) -> None:
    """Add messages to the transaction of `connection`, those of a kind together."""
    kinds: defaultdict[tuple[str, float], list[Draft]] = defaultdict(list)
    for one in messages:
        kinds[one.topic, one.after].append(one.draft)
    for (topic, after), drafts in kinds.items():
        await outbox.add(connection, topic, drafts, after=after)


async def say_new(outbox: Outbox, connection: AsyncConnection, messages: Iterable[Said]) -> None:
    """`say`, at once, what follows from a change of its job that is made only once."""
    topics: defaultdict[str, list[Draft]] = defaultdict(list)
    for one in messages:
        topics[one.topic].append(one.draft)
    for topic, drafts in topics.items():
        await outbox.add_new(connection, topic, drafts)
