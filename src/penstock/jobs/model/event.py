"""What happens to jobs. Pure."""

from __future__ import annotations

from inspect import get_annotations
from typing import ClassVar

from msgspec import Struct

from penstock.jobs.model.fields import (
    Count,
    JobId,
    Moment,
    OpaqueId,
    Run,
    Seconds,
    TraceParent,
    Word,
)
from penstock.jobs.model.names import JobStage, MediaType


class StageEvent(
    Struct, frozen=True, kw_only=True, rename="camel", tag_field="event", omit_defaults=True
):
    """A job has reached a stage. `at` is when the store recorded it; `took`: the seconds of work
    that led here, in the attempt that did; `retries`: the attempts before that one.

    Subclass it to say more: fields of its own are facts of the job, which the read model keeps
    and the page shows. It is about the stage of its own name unless it says `stage = …`.
    """

    stage: ClassVar[JobStage]
    schema_version: ClassVar[int] = 1

    job_id: JobId
    user_id: OpaqueId
    media_type: MediaType
    run: Run
    at: Moment
    previous: JobStage | None = None
    took: Seconds | None = None
    retries: Count = 0
    correlation_id: OpaqueId | None = None
    traceparent: TraceParent | None = None

    def __init_subclass__(cls) -> None:
        if "stage" not in cls.__dict__:
            cls.stage = JobStage.named(cls.__name__)

    @classmethod
    def facts(cls) -> tuple[str, ...]:
        """The names of its own fields."""
        return cls.__struct_fields__[len(StageEvent.__struct_fields__) :]

    @classmethod
    def taken_names(cls) -> list[str]:
        """Fields of its own that are called as something that every event has; there may be
        none."""
        own = [kind for kind in cls.__mro__ if issubclass(kind, StageEvent) and kind != StageEvent]
        named = {name for kind in own for name in get_annotations(kind)}
        return sorted(named & {*cls.__struct_fields__} & {*dir(StageEvent)})


# No docstrings: they would become part of the schema of the messages.


class JobQueued(StageEvent, frozen=True, kw_only=True):
    stage: ClassVar[JobStage] = JobStage.QUEUED


class JobFailed(StageEvent, frozen=True, kw_only=True):
    stage: ClassVar[JobStage] = JobStage.FAILED
    reason: Word
    attempts: Count = 1


class JobCancelled(StageEvent, frozen=True, kw_only=True):
    stage: ClassVar[JobStage] = JobStage.CANCELLED
