"""A pipeline: one value that says which jobs there are and what becomes of them, stage by stage.

Settings, topics and filters, both runners, the rule by which jobs move, the read model, the
history, the command line and the page read it; nothing else knows what stages there are. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, TypeAlias

import msgspec

from penstock.config import check_name
from penstock.errors import InvalidArgumentError
from penstock.jobs.model.codec import Codec
from penstock.jobs.model.event import JobCancelled, JobFailed, JobQueued, StageEvent
from penstock.jobs.model.job import Job, media_type_of
from penstock.jobs.model.names import JobStage, MediaType
from penstock.jobs.pipeline.stage import Stage
from penstock.jobs.pipeline.stage_settings import StageSettings

Opener: TypeAlias = Callable[..., AbstractAsyncContextManager[Any]]
PROJECTION = "projection"
"""What reads the events rather than the jobs; so no stage is called that."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pipeline:
    """Stages in order, and the types of what goes through them.

    `jobs`: a payload type for each media type. `stages`: the first takes jobs that are Queued, each
    of the others what the one before emits. `tools`: called with the settings and the store, once a
    process, and entered while stages run: what handlers work with. `prefix`: what the names of
    topics and subscriptions begin with; the pipeline's name unless given.
    """

    name: str
    jobs: Sequence[type[Job]]
    stages: Sequence[Stage]
    tools: Opener | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", self.prefix or self.name)
        check_name("Topic", self.processing_topic)
        named = [_with_event(stage) for stage in self.stages]
        object.__setattr__(self, "stages", tuple(named))
        if not self.jobs or not self.stages:
            raise self._wrong(
                "it needs a type of job and a stage, at least; give it `jobs` and `stages`"
            )
        names = [stage.name for stage in self.stages]
        if len({*names, PROJECTION}) <= len(names) or not all(map(str.isidentifier, names)):
            raise self._wrong(
                f"its stages need names of their own, such as 'metadata', and not {PROJECTION!r}"
            )
        reached = JobStage.QUEUED
        for stage in self.stages:
            stage.check_handler(self.jobs)
            self._check(stage, reached)
            reached = stage.emits
            self.settings_of(stage)
        if len(set(self.order)) <= len(self.stages):
            raise self._wrong(
                "a job would come to the same stage twice; let each stage emit a name of its own"
            )
        if len(self.job_types) < len(self.jobs):
            raise self._wrong(
                "two of its types of jobs have the same tag; give each a `tag` of its own"
            )
        try:
            self.codec.json_schema()
        except TypeError as error:
            raise self._wrong(
                f"its types cannot be sent ({error}); make them of what JSON can say, such as "
                "penstock.jobs.Word and Count"
            ) from None

    def _check(self, stage: Stage, reached: JobStage) -> None:
        if stage.consumes is not reached or stage.emits in (JobStage.FAILED, JobStage.CANCELLED):
            raise self._wrong(
                f"stage {stage.name!r} cannot take jobs from {stage.consumes} to {stage.emits}: "
                f"it comes when they are {reached}; let it consume {reached} and emit a new name"
            )
        if stage.event is not None and stage.event.stage is not stage.emits:
            raise self._wrong(
                f"stage {stage.name!r} emits {stage.emits}, but {stage.event.__name__} is about "
                f"{stage.event.stage}; name the event {stage.emits}, or give it `stage`"
            )
        if stage.event is not None and (taken := stage.event.taken_names()):
            raise self._wrong(
                f"{stage.event.__name__} has a field {taken[0]!r}, which means something else in "
                "every event; give that fact another name"
            )

    def _wrong(self, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"Pipeline {self.name!r} is not declared right: {why}")

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {' → '.join(self.order)}>"

    def then(self, *stages: Stage, name: str | None = None) -> Pipeline:
        """The same with more stages after its last, on the same topics."""
        more = (*self.stages, *stages)
        return replace(self, name=name or self.name, stages=more, prefix=self.prefix)

    # Its names.

    @property
    def processing_topic(self) -> str:
        return f"{self.prefix}-processing"

    @property
    def events_topic(self) -> str:
        return f"{self.prefix}-events"

    def settings_of(self, stage: Stage) -> StageSettings:
        """What a stage's settings are before anybody changes them."""
        given = {
            "subscription": f"{self.prefix}-{stage.name}",
            "filter": f'attributes.stage = "{stage.consumes}"',
            **stage.defaults,
        }
        try:
            return msgspec.convert(given, StageSettings)
        except (msgspec.ValidationError, InvalidArgumentError) as error:
            raise self._wrong(f"the defaults of stage {stage.name!r}: {error}") from None

    # Its stages.

    @cached_property
    def order(self) -> tuple[JobStage, ...]:
        """Where a job is, one after the other, when nothing goes wrong."""
        return (JobStage.QUEUED, *(stage.emits for stage in self.stages))

    @cached_property
    def _ranks(self) -> dict[JobStage, int]:
        end = len(self.stages)
        ranks = {stage: rank for rank, stage in enumerate(self.order)}
        return ranks | {JobStage.FAILED: end, JobStage.CANCELLED: end}

    def stage(self, name: str) -> Stage:
        """The stage of that name."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        known = ", ".join(stage.name for stage in self.stages)
        raise InvalidArgumentError(f"Pipeline {self.name!r} has no stage {name!r}; it has {known}")

    def in_place_of(self, stage: Stage) -> Stage:
        """The declared stage that another one, by whatever name, does the work of."""
        for declared in self.stages:
            if (declared.consumes, declared.emits) == (stage.consumes, stage.emits):
                return declared
        raise InvalidArgumentError(
            f"Stage {stage.name!r} cannot take jobs from {stage.consumes} to {stage.emits}: in "
            f"pipeline {self.name!r} they go {' → '.join(self.order)}"
        )

    # How jobs move.

    def rank(self, stage: JobStage) -> int:
        """How far a job is; the three ways to end have the highest."""
        return self._ranks[stage]

    def is_end(self, stage: JobStage) -> bool:
        return self._ranks[stage] == len(self.stages)

    def after(self, stage: JobStage) -> frozenset[JobStage]:
        """Where a job may go from there: on, or to an end; from a bad end to a new run."""
        if stage in (JobStage.FAILED, JobStage.CANCELLED):
            return frozenset((JobStage.QUEUED,))
        if self.is_end(stage):
            return frozenset()
        return frozenset((self.order[self.rank(stage) + 1], JobStage.FAILED, JobStage.CANCELLED))

    def may_become(self, stage: JobStage, other: JobStage) -> bool:
        return other in self.after(stage)

    def check_step(self, job: Job, to: JobStage) -> None:
        """`InvalidArgumentError` when the job may not go there from where it is."""
        if not self.may_become(job.stage, to):
            may = ", ".join(sorted(self.after(job.stage))) or "nothing else"
            raise InvalidArgumentError(
                f"Job {job.job_id} is {job.stage} and cannot become {to}; from {job.stage} it may "
                f"become {may}"
            )

    def moved(self, job: Job, to: JobStage, info: Any = None) -> Job:
        """The job as it goes on. `InvalidArgumentError` when it may not go there."""
        self.check_step(job, to)
        again = to is JobStage.QUEUED
        changes: dict[str, Any] = {"stage": to, "run": job.run + 1 if again else job.run}
        if again or info is not None:
            changes["info"] = None if again else info
        if not hasattr(job, "info"):
            changes.pop("info", None)
        return msgspec.structs.replace(job, **changes)

    def is_news(self, run: int, stage: JobStage, known_run: int, known_stage: JobStage) -> bool:
        """Whether (run, stage) is later in a job's life than what is known of it.

        Stages of a run come in one order and a run ends once, so messages may arrive late, twice
        or out of order: whatever is not later changes nothing.
        """
        return (run, self.rank(stage)) > (known_run, self.rank(known_stage))

    # What is sent.

    @cached_property
    def job_types(self) -> dict[MediaType, type[Job]]:
        return {media_type_of(kind): kind for kind in self.jobs}

    @cached_property
    def event_types(self) -> dict[JobStage, type[StageEvent]]:
        """What is told of each stage, in order, and of the ends."""
        told: dict[JobStage, type[StageEvent]] = {JobStage.QUEUED: JobQueued}
        told |= {stage.emits: stage.event for stage in self.stages if stage.event is not None}
        return told | {JobStage.FAILED: JobFailed, JobStage.CANCELLED: JobCancelled}

    @cached_property
    def facts(self) -> dict[str, type[StageEvent]]:
        """What events say beyond what all of them do: each name, and the first type that has it."""
        found: dict[str, type[StageEvent]] = {}
        for event in self.event_types.values():
            for name in event.facts():
                found.setdefault(name, event)
        return found

    @cached_property
    def codec(self) -> Codec:
        previous = dict(zip(self.order, (None, *self.order), strict=False))
        return Codec(self.job_types, tuple(self.event_types.values()), previous)


def _with_event(stage: Stage) -> Stage:
    """A stage that says nothing of its event tells that it was reached, and no more."""
    if stage.event is not None:
        return stage
    plain: Any = msgspec.defstruct(
        stage.emits.value, [], bases=(StageEvent,), frozen=True, kw_only=True, module=__name__
    )
    return replace(stage, event=plain)


def pipeline_of(reference: str) -> Pipeline:
    """The pipeline at `module:NAME`, looked up where it is needed."""
    found = _named("Pipeline", reference)
    if not isinstance(found, Pipeline):
        raise InvalidArgumentError(
            f"{reference!r} is a {type(found).__name__}; it should be a penstock.jobs.Pipeline"
        )
    return found


def tools_at(reference: str) -> Opener:
    """The tools at `module:NAME`, loaded when stages run and no earlier: whoever only asks for jobs
    needs none of it."""

    def opened(*given: Any) -> AbstractAsyncContextManager[Any]:
        opener: Opener = _named("Tools", reference)
        return opener(*given)

    return opened


def _named(what: str, reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{what} {reference!r} cannot be found ({error}); give it as module:NAME, and see "
            "that the module is installed on every machine that runs its stages"
        ) from None
