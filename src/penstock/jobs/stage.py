"""A stage, declared once and run by either runner: the asyncio worker or Spark.

A handler takes a job and returns what became of it as a value. Whatever it raises instead is
turned into such a value here, at the one edge, so that no runner has to judge exceptions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from penstock.errors import InvalidArgumentError, PenstockError
from penstock.jobs.job import Info, JobStage, ProcessingJob, Seconds, Word

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


@dataclass(frozen=True, slots=True)
class Retry:
    """It may succeed later: after so many seconds, or as the stage's backoff says."""

    reason: str
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """It never will: the job fails with this reason. `gave_up`: for now at least, after the last
    attempt."""

    reason: str
    gave_up: bool = False


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
    `max_attempts`: deliveries after which a job that still wants to be retried fails.
    """

    name: str
    consumes: JobStage
    emits: JobStage
    handler: Handler
    time_limit: float = 600.0
    max_attempts: int = 5

    def __post_init__(self) -> None:
        if not self.consumes.may_become(self.emits):
            raise InvalidArgumentError(
                f"Stage {self.name!r} cannot take jobs from {self.consumes} to {self.emits}"
            )

    async def run(self, job: ProcessingJob, attempt: int = 1) -> Outcome:
        """One attempt at a job, always answered; the last one is never a `Retry`."""
        outcome = await self._attempt(job)
        if isinstance(outcome, Retry) and attempt >= self.max_attempts:
            return Reject(outcome.reason, gave_up=True)
        return outcome

    async def _attempt(self, job: ProcessingJob) -> Outcome:
        if job.stage is not self.consumes:
            return Reject("wrong-stage")
        try:
            async with asyncio.timeout(self.time_limit) as limit:
                outcome = await self.handler(job)
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                return Retry("time-limit")
            return judge(error, f"Stage {self.name!r} of job {job.job_id}")
        if not isinstance(outcome, Done | Retry | Reject):
            _log.error(
                "The handler of stage %r returned a %s; it must return Done, Retry or Reject",
                self.name,
                type(outcome).__name__,
            )
            return Reject("handler-error")
        return outcome


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
