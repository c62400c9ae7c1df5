"""A stage, declared once and run by either runner: the asyncio worker or Spark.

A handler takes a job and returns what became of it as a value. Whatever it raises instead is
turned into such a value here, at the one edge, so that no runner has to judge exceptions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import Parameter, signature
from types import NoneType
from typing import Any, Protocol, TypeAlias, TypeVar, get_args, get_type_hints, runtime_checkable

import msgspec
from msgspec import Struct

from penstock.config import DAY, check_duration, check_whole
from penstock.errors import FailedPreconditionError, InvalidArgumentError, PenstockError
from penstock.jobs.model.event import StageEvent
from penstock.jobs.model.fields import Count, Word
from penstock.jobs.model.job import Job, info_type
from penstock.jobs.model.names import JobStage
from penstock.jobs.pipeline.first_step import FirstStep
from penstock.jobs.pipeline.handler_check import check_handler
from penstock.jobs.pipeline.stage_settings import StageDefaults
from penstock.media.transcript import Segment
from penstock.outcomes import Reject as Reject
from penstock.outcomes import Retry as Retry

_log = logging.getLogger("penstock.jobs")
T = TypeVar("T")


class Text(Struct, frozen=True, kw_only=True):
    """A transcript, or the text of a document. Stored, never sent. `pages`: how many were read, of
    what has pages; `truncated`: there was more than the limits allow; `doubtful`: whoever wrote it
    was unsure of most of it."""

    segments: list[Segment]
    language: Word | None = None
    model: str = ""
    pages: Count | None = None
    truncated: bool = False
    doubtful: bool = False

    @property
    def characters(self) -> int:
        return sum(len(segment.text) for segment in self.segments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """The job goes on. `info`: what was found out about it, which goes on with it. `text`, `title`
    and `result`, which is anything that JSON can say, are kept in the store and never sent; a
    result is found again by the stage's name. `facts`: what the stage's event says besides, by the
    names of its fields."""

    info: Struct | None = None
    text: Text | None = None
    title: str | None = None
    result: Any = None
    facts: Mapping[str, Any] = field(default_factory=dict)


Outcome: TypeAlias = Done | Retry | Reject
Handler: TypeAlias = Callable[..., Awaitable[Outcome]]
"""Takes a job; and the tools of its pipeline, when it has a second argument."""


@runtime_checkable
class Judged(Protocol):
    """An error that says itself what it means for the job, as `MediaError` does."""

    reason: str
    permanent: bool


CONFIGURATION = "configuration"
"""The reason that is never the job's: an operator must change something where it was tried."""
_OURS = frozenset((CONFIGURATION, "guard_unavailable"))


class CannotWorkError(FailedPreconditionError):
    """A job cannot be worked on here until somebody changes something, and is not to blame: it
    waits, and the attempt does not count."""

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        super().__init__(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Takes jobs from `consumes` to `emits`.

    `event`: the type of what is told then; a plain one named as `emits` unless given.
    `time_limit`: seconds a handler may take, after which it is cancelled and tried again.
    `max_attempts`: attempts after which a job that still wants to be retried fails. Both are as the
    settings say unless given here. `defaults`: what the stage's settings are before a file or the
    environment changes them: `{"concurrency": 16, "time_limit": 120.0}`, see `StageSettings`.
    A handler that can never work, and limits that cannot be, are refused here.
    """

    name: str
    consumes: JobStage
    emits: JobStage
    handler: Handler
    event: type[StageEvent] | None = None
    time_limit: float | None = None
    max_attempts: int | None = None
    defaults: StageDefaults = field(default_factory=StageDefaults)

    def __post_init__(self) -> None:
        for side in ("consumes", "emits"):
            object.__setattr__(self, side, JobStage.named(getattr(self, side)))
        self.check_handler((Job,))
        of = f"of stage {self.name!r}"
        if self.time_limit is not None:
            check_duration(f"time_limit {of}", self.time_limit, 0.001, DAY)
        if self.max_attempts is not None:
            check_whole(f"max_attempts {of}", self.max_attempts, 1)

    def check_handler(self, jobs: Sequence[type[Job]]) -> None:
        """`InvalidArgumentError` when it can never work with any of these types of jobs."""
        check_handler(self.name, self.handler, takes=jobs, returns=(Done, Retry, Reject))

    @property
    def takes_tools(self) -> bool:
        """Whether the handler wants the tools of its pipeline beside the job."""
        try:
            parameters = signature(self.handler).parameters.values()
        except (TypeError, ValueError):
            return False
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        needed = [p for p in parameters if p.kind in positional and p.default is Parameter.empty]
        return len(needed) > 1

    def using(self, tools: object) -> Stage:
        """The same, its handler with the tools in hand if it takes them."""
        if not self.takes_tools:
            return self
        handler = self.handler
        return replace(self, handler=lambda job: handler(job, tools))

    def limited(self, time_limit: float, max_attempts: int) -> Stage:
        """With these limits where it has none of its own."""
        return replace(
            self,
            time_limit=time_limit if self.time_limit is None else self.time_limit,
            max_attempts=max_attempts if self.max_attempts is None else self.max_attempts,
        )

    async def run(self, job: Job, attempt: int = 1) -> Outcome:
        """One attempt at a job, always answered; the last one is never a `Retry`.
        `CannotWorkError` when the reason is `configuration`: that is nothing about the job."""
        outcome = await self._attempt(job)
        if not isinstance(outcome, Done) and outcome.reason == CONFIGURATION:
            raise self._cannot_work(job, CONFIGURATION, "its handler says so")
        last = self.max_attempts is not None and attempt >= self.max_attempts
        if isinstance(outcome, Retry) and last:
            return Reject(outcome.reason, gave_up=True)
        return outcome

    async def _attempt(self, job: Job) -> Outcome:
        if job.stage is not self.consumes:
            raise InvalidArgumentError(f"Stage {self.name!r} takes no jobs that are {job.stage}")
        limit = _Limit(self.time_limit)
        try:
            outcome = await limit.within(self.handler(job))
        except (Retry, Reject) as decided:
            outcome = decided
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired:
                return Retry("time-limit")
            if isinstance(error, Judged) and str(error.reason) in _OURS:
                raise self._cannot_work(job, error.reason, str(error)) from error
            return judge(error, f"Stage {self.name!r} of job {job.job_id}")
        wrong = _what_is_wrong(outcome, job, self.event)
        if wrong is not None:
            _log.error("The handler of stage %r %s", self.name, wrong)
            return Reject("handler-error")
        return outcome

    def _cannot_work(self, job: Job, reason: str, why: str) -> CannotWorkError:
        return CannotWorkError(
            reason,
            f"Stage {self.name!r} cannot work on {job.media_type} jobs here ({why}); they wait "
            "until that is changed, and no job fails of it",
        )


class _Limit:
    """A time limit for what waits for something."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self.expired = False

    async def within(self, work: Awaitable[T]) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if isinstance(work, Coroutine):
            first: FirstStep[T] = FirstStep(work)
            if first.ended:
                return first.result
            work = first
        try:
            until = None if self._seconds is None else began + self._seconds
            async with asyncio.timeout_at(until) as limit:
                return await work
        finally:
            self.expired = limit.expired()


def _what_is_wrong(outcome: object, job: Job, event: type[StageEvent] | None) -> str | None:
    """What a handler returns travels in messages and rows, so it must be of the kind that may."""
    match outcome:
        case Retry(reason) | Reject(reason):
            if not _is(Word, reason):
                return "gave a reason that is not a word such as 'malformed'"
        case Done(info=info, text=text, result=result, facts=facts):
            if info is not None and not _is(_some_info(type(job)), msgspec.to_builtins(info)):
                return f"returned info that a job of type {job.media_type} cannot have"
            if text is not None and not _is(Text, msgspec.to_builtins(text)):
                return "returned a text with values that no text has"
            if not _is_json(result):
                return f"returned a result that JSON cannot say, a {type(result).__name__}"
            return _what_is_wrong_with(facts, event)
        case _:
            kind = type(outcome).__name__
            return f"returned a {kind}; it must return Done, Retry or Reject"
    return None


def _what_is_wrong_with(facts: Mapping[str, Any], event: type[StageEvent] | None) -> str | None:
    own = event.facts() if event is not None else ()
    for name, value in facts.items():
        if event is None or name not in own:
            known = f"its event has {', '.join(own)}" if own else "its event has none"
            return f"returned facts with a name that no event of this stage has: {known}"
        if not _is(get_type_hints(event, include_extras=True)[name], msgspec.to_builtins(value)):
            return f"returned a value of {name!r} that {event.__name__} cannot have"
    return None


@cache
def _some_info(kind: type[Job]) -> Any:
    """What `info` of such a job is when there is some. One type alone is checked in half the time
    of a union, which is read anew each time."""
    declared = info_type(kind)
    some = [one for one in get_args(declared) if one is not NoneType]
    return some[0] if len(some) == 1 else declared


def _is_json(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


def _is(kind: Any, value: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def judge(error: Exception, where: str) -> Retry | Reject:
    """What an exception means for the job."""
    if isinstance(error, Judged):
        if error.permanent:
            return Reject(error.reason)
        try:
            return Retry(error.reason, getattr(error, "retry_after", None))
        except InvalidArgumentError:  # It is somebody else's class, and may say anything.
            return Retry(error.reason)
    if isinstance(error, PenstockError):
        reason = f"code-{error.code}"
        return Retry(reason) if error.retryable else Reject(reason)
    if isinstance(error, OSError | MemoryError):
        # The machine's trouble, not the job's.
        _log.warning("%s: %s", where, type(error).__name__)
        return Retry("machine")
    _log.error("%s raised %s", where, type(error).__name__, exc_info=error)
    return Retry("handler-error")
