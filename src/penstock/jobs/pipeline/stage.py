"""A stage, declared once and run by either runner: the asyncio worker or Spark.

A handler takes a job and returns what became of it as a value. Whatever it raises instead is
turned into such a value here, at the one edge, so that no runner has to judge exceptions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import Struct

from penstock.errors import InvalidArgumentError, PenstockError
from penstock.jobs.model.job import INFO_TYPES, Info, JobStage, ProcessingJob, Seconds, Word
from penstock.outcomes import Reject as Reject
from penstock.outcomes import Retry as Retry

_log = logging.getLogger("penstock.jobs")


class Segment(Struct, frozen=True, array_like=True):
    """What was said between two moments, in seconds from the beginning."""

    start: Seconds
    end: Seconds
    text: str


class Text(Struct, frozen=True, kw_only=True):
    """A transcript, or the text of a document. Stored, never sent."""

    segments: list[Segment]
    language: Word | None = None
    model: str = ""

    @property
    def characters(self) -> int:
        return sum(len(segment.text) for segment in self.segments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """The job goes on: what was found out about its media, and what belongs in the store."""

    info: Info | None = None
    text: Text | None = None
    title: str | None = None


Outcome: TypeAlias = Done | Retry | Reject
Handler: TypeAlias = Callable[[ProcessingJob], Awaitable[Outcome]]


@runtime_checkable
class Judged(Protocol):
    """An error that says itself what it means for the job, as `MediaError` does."""

    reason: str
    permanent: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Takes jobs from `consumes` to `emits`.

    `time_limit`: seconds a handler may take, after which it is cancelled and tried again.
    `max_attempts`: attempts after which a job that still wants to be retried fails. Both are as the
    settings say unless given here.
    """

    name: str
    consumes: JobStage
    emits: JobStage
    handler: Handler
    time_limit: float | None = None
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        if not self.consumes.may_become(self.emits):
            raise InvalidArgumentError(
                f"Stage {self.name!r} cannot take jobs from {self.consumes} to {self.emits}"
            )

    def limited(self, time_limit: float, max_attempts: int) -> Stage:
        """With these limits where it has none of its own."""
        return replace(
            self,
            time_limit=time_limit if self.time_limit is None else self.time_limit,
            max_attempts=max_attempts if self.max_attempts is None else self.max_attempts,
        )

    async def run(self, job: ProcessingJob, attempt: int = 1) -> Outcome:
        """One attempt at a job, always answered; the last one is never a `Retry`."""
        outcome = await self._attempt(job)
        last = self.max_attempts is not None and attempt >= self.max_attempts
        if isinstance(outcome, Retry) and last:
            return Reject(outcome.reason, gave_up=True)
        return outcome

    async def _attempt(self, job: ProcessingJob) -> Outcome:
        if job.stage is not self.consumes:
            raise InvalidArgumentError(f"Stage {self.name!r} takes no jobs that are {job.stage}")
        try:
            async with asyncio.timeout(self.time_limit) as limit:
                outcome = await self.handler(job)
        except (Retry, Reject) as decided:
            outcome = decided
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                return Retry("time-limit")
            return judge(error, f"Stage {self.name!r} of job {job.job_id}")
        wrong = _what_is_wrong(outcome, job)
        if wrong is not None:
            _log.error("The handler of stage %r %s", self.name, wrong)
            return Reject("handler-error")
        return outcome


def _what_is_wrong(outcome: object, job: ProcessingJob) -> str | None:
    """What a handler returns travels in messages and rows, so it must be of the kind that may."""
    match outcome:
        case Retry(reason) | Reject(reason):
            if not _is(Word, reason):
                return "gave a reason that is not a word such as 'malformed'"
        case Done(info=info, text=text):
            if info is not None and not _is(INFO_TYPES[job.media_type], msgspec.to_builtins(info)):
                return f"returned info that a job of type {job.media_type} cannot have"
            if text is not None and not _is(Text, msgspec.to_builtins(text)):
                return "returned a text with values that no text has"
        case _:
            kind = type(outcome).__name__
            return f"returned a {kind}; it must return Done, Retry or Reject"
    return None


def _is(kind: Any, value: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def judge(error: Exception, where: str) -> Retry | Reject:
    """What an exception means for the job."""
    if isinstance(error, Judged):
        after = getattr(error, "retry_after", None)
        return Reject(error.reason) if error.permanent else Retry(error.reason, after)
    if isinstance(error, PenstockError):
        reason = f"code-{error.code}"
        return Retry(reason) if error.retryable else Reject(reason)
    if isinstance(error, OSError | MemoryError):
        # The machine's trouble, not the job's.
        _log.warning("%s: %s", where, type(error).__name__)
        return Retry("machine")
    _log.error("%s raised %s", where, type(error).__name__, exc_info=error)
    return Retry("handler-error")
