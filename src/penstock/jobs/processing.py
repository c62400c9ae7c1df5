"""One attempt at one job: is it due, do the work, keep the result and say it. For every runner the
same.

What remains to a runner: bring messages, and let go of each once it is dealt with here. Everything
that follows from a message, the job's next stage, its next message, its event, another attempt, a
dead letter, is committed in one transaction. So a runner may be killed anywhere: before, the
message comes again; after, it is about something that is done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from penstock.dead_letters.replaying import REPLAY_OF
from penstock.errors import PenstockError
from penstock.jobs.incoming import Incoming, dead_letter, put_back
from penstock.jobs.model.codec import InvalidMessageError
from penstock.jobs.model.job import Job
from penstock.jobs.model.names import JobStage
from penstock.jobs.pipeline.first_step import FirstStep
from penstock.jobs.pipeline.stage import CannotWorkError, Done, Outcome, Reject, Retry, Stage
from penstock.jobs.pipeline.stage_settings import StageSettings
from penstock.jobs.store.job_store import ProcessingJobStore
from penstock.jobs.store.records import JobRecord, Standing, Step, UnknownStageError, standing
from penstock.jobs.store.said import Said
from penstock.jobs.telemetry import JobObserver, Subject, say_outcome, span, subject_of
from penstock.message import Draft
from penstock.retrying import Outage, Persistence, is_retryable, retry
from penstock.rules.backoff import Backoff
from penstock.transactional.outbox import LONGEST_DELAY

_log = logging.getLogger("penstock.jobs")
T = TypeVar("T")

# Seconds between looks at whether a job was cancelled: work on it is wasted, never wrong.
_CANCEL_CHECK = 5.0
# Seconds after which trouble that stays is spoken of again.
_REMINDER = 600.0
# What took hours to find out is not thrown away because the database is away for a minute.
_KEEPING = Persistence(backoff=Backoff(initial=0.2, maximum=5.0), within=120.0)


class _Became(NamedTuple):
    """What became of a message, in a word, and why."""

    outcome: str
    reason: str | None = None


_UNKNOWN = "unknown-job"
_UNKNOWN_STAGE = "unknown-stage"
_STALE = _Became("stale")
_LOST = _Became("lost")


class Attempted(Struct, frozen=True):
    """An attempt that has come to its end, and what came of it. `began`: by the monotonic clock;
    `took`: the seconds of its work. `record`: what was kept of the job when it began."""

    message: Incoming
    job: Job
    subject: Subject
    attempt: int
    outcome: Outcome
    began: float
    took: float
    record: JobRecord | None = None


class Processing:
    """A stage at work on its messages, with the limits and retries of its settings.

    A job that is not in the database becomes a dead letter once another was, which shows that it
    is the right one; until then, and always with `unknown_fails`, it is an error. What cannot be
    worked on here is an error too, `CannotWorkError`, and said once; with `sends_again` it is sent
    again after a while instead, for runners whose messages nobody brings back. Trouble with the
    database is told by `outage`, once for all jobs that meet it; runners tell it what they meet.
    """

    def __init__(
        self,
        stage: Stage,
        settings: StageSettings,
        store: ProcessingJobStore,
        observer: JobObserver,
        *,
        unknown_fails: bool = False,
        sends_again: bool = False,
    ) -> None:
        self.stage = stage.limited(settings.time_limit, settings.max_attempts)
        self._settings = settings
        self._store = store
        self._observer = observer
        self._unknown_fails = unknown_fails
        self._sends_again = sends_again
        self._is_right_database = False
        self._complained: dict[tuple[str, str], float] = {}
        self.outage = Outage(_log, f"Stage {stage.name} cannot use the database, so its jobs wait")

    async def read(self, message: Incoming) -> Job | None:
        """The job in a message; None when there is none, and that has been dealt with."""
        try:
            return self._store.pipeline.codec.decode_job(message.data, message.attributes)
        except InvalidMessageError as error:
            await self._is_no_job(message, error.reason)
            return None

    async def attempt(self, message: Incoming, job: Job, record: JobRecord | None) -> None:
        """`record` is what `store.begin` answered. When this returns the message may be forgotten.
        When it raises, because the database is in trouble for instance, it must come again; that
        costs the job no attempt."""
        ended = await self.work(message, job, record)
        if ended is not None:
            await self.keep(ended)

    async def put_off(self, message: Incoming, job: Job, error: UnknownStageError) -> None:
        """Nothing can be said of the job here, nor to it: its message is to come again after a
        while, where nobody else brings it back."""
        subject = subject_of(message.attributes, message.times_put_back + 1)
        self._observer.received(subject, self._settings.subscription)
        self._complain(job, CannotWorkError(_UNKNOWN_STAGE, str(error)))
        seconds = self._settings.maximum_backoff
        await self._store.send(Said(message.topic, put_back(message), seconds))
        self._handled(subject, _Became("waits", _UNKNOWN_STAGE), 0.0)

    async def work(self, message: Incoming, job: Job, record: JobRecord | None) -> Attempted | None:
        """An attempt whose outcome is still to be kept; None when there was nothing to do about
        the message. `record` is what `store.begin` answered."""
        attempt = max(1, record.attempts if record is not None else 1)
        subject = subject_of(message.attributes, max(attempt, message.delivery))
        self._observer.received(subject, self._settings.subscription)
        began = time.monotonic()
        came: Outcome | _Became = _LOST
        self._is_right_database |= record is not None
        try:
            came = await self._came_of(message, job, record, attempt)
        except CannotWorkError as error:
            came = _Became("waits", error.reason)
            self._complain(job, error)
            raise
        finally:
            took = time.monotonic() - began
            if isinstance(came, _Became):
                self._handled(subject, came, took)
        if isinstance(came, _Became):
            return None
        return Attempted(message, job, subject, attempt, came, began, took, record)

    def _handled(self, subject: Subject, became: _Became, took: float) -> None:
        if became.reason is not None:
            subject = replace(subject, reason=became.reason)
        self._observer.handled(subject, self.stage.name, became.outcome, took)

    async def _came_of(
        self, message: Incoming, job: Job, record: JobRecord | None, attempt: int
    ) -> Outcome | _Became:
        """The outcome of the work; or what became of a message that needed none."""
        if job.stage is not self.stage.consumes:
            # Some filter let through what is for another stage, which has it as well.
            return _STALE
        match standing(self._store.pipeline, job, record):
            case Standing.STALE:
                return _STALE
            case Standing.DONE:
                return await self._run_anew(message, record)
            case Standing.UNKNOWN:
                # Its row is committed before its message is sent: this is another database.
                if self._unknown_fails or not self._is_right_database:
                    raise CannotWorkError(
                        _UNKNOWN,
                        f"Job {job.job_id} of topic {message.topic!r} is not in the database "
                        f"({self._store.database.place}): is it the one of these jobs? Start again "
                        "with the right one; nothing was done about the job",
                    )
                await self._bury(message, _UNKNOWN, attempt)
                return _Became("reject", _UNKNOWN)
        attributes: dict[str, str | int] = {
            "penstock.job.id": job.job_id,
            "penstock.job.attempt": attempt,
        }
        try:
            with span(f"process {self.stage.name}", job.traceparent, attributes):
                outcome = await self._work(job, attempt)
                say_outcome(*(_STALE if outcome is None else _becomes(outcome)))
                return _STALE if outcome is None else outcome
        except asyncio.CancelledError:
            await self._interrupted(job)
            raise
        except CannotWorkError as error:
            if not self._sends_again:
                with suppress(PenstockError):
                    await self._store.interrupt(job)
                raise
            self._complain(job, error)
            seconds = self._settings.maximum_backoff
            await self._patiently(lambda: self._store.try_again(job, seconds, counts=False))
            return _Became("waits", error.reason)

    async def _interrupted(self, job: Job) -> None:
        """Whoever stops a worker does not make the job fail."""
        with suppress(PenstockError):
            await asyncio.shield(self._store.interrupt(job))

    def _complain(self, job: Job, error: CannotWorkError) -> None:
        """Once, not for each job each time it comes; and again when it has lasted a while."""
        # A database is the right one for all jobs or for none.
        kind = "" if error.reason == _UNKNOWN else job.media_type.value
        about, now = (kind, error.reason), time.monotonic()
        if now - self._complained.get(about, -_REMINDER) >= _REMINDER:
            self._complained[about] = now
            _log.error("%s", error)

    async def _run_anew(self, message: Incoming, record: JobRecord | None) -> _Became:
        """A job that has gone on needs nothing, but one that was given up and whose dead letter is
        replayed is run anew, as if it were retried."""
        if record is None or REPLAY_OF not in message.attributes:
            return _Became("duplicate")
        if record.job.stage is not JobStage.FAILED:
            return _Became("duplicate")
        changed = await self._store.step(Step(job=record.job, to=JobStage.QUEUED))
        return _Became("retry", "replayed") if changed is not None else _STALE

    async def _work(self, job: Job, attempt: int) -> Outcome | None:
        """None when the job was cancelled meanwhile."""
        most = self.stage.max_attempts
        if most is not None and attempt > most:
            # Whoever had it before died of it each time.
            return Reject("gave-up", gave_up=True)
        running = FirstStep(self.stage.run(job, attempt))
        if running.ended:
            return running.result
        watch = _Watch(lambda: self._still_due(job))
        try:
            return await running
        except asyncio.CancelledError:
            if watch.took_back():
                return None
            raise
        finally:
            watch.end()

    async def _still_due(self, job: Job) -> bool:
        try:
            record = await self._store.get(job.job_id)
            self.outage.over()
            return standing(self._store.pipeline, job, record) is Standing.DUE
        except PenstockError as error:
            if is_retryable(error):
                self.outage.met(error)
            else:
                _log.warning("Cannot look whether job %s was cancelled: %s", job.job_id, error)
            return True

    async def keep(self, ended: Attempted) -> None:
        """Commit the outcome of an attempt and all that follows from it. Somebody else may have
        been faster: then theirs stands and ours changes nothing."""
        change = self._change(ended)
        became = _LOST
        try:
            if isinstance(change, Step):
                taken = await self._patiently(lambda: self._store.step(change))
                is_kept = taken is not None
            else:
                is_kept = await self._patiently(lambda: self._store.try_again(*change))
            became = _becomes(ended.outcome) if is_kept else _STALE
        except asyncio.CancelledError:
            await self._interrupted(ended.job)
            raise
        finally:
            self._tell(ended, became)

    async def keep_together(self, many: Sequence[Attempted]) -> None:
        """`keep` for many, in one transaction; when that fails because of one of them, each in one
        of its own, and the first failure is raised when all were tried."""
        changes = [self._change(ended) for ended in many]
        steps = [one for one in changes if isinstance(one, Step)]
        retries = [one for one in changes if not isinstance(one, Step)]
        try:
            taken, postponed = await self._patiently(
                lambda: self._store.end_together(steps, retries)
            )
        except Exception as error:
            if len(many) == 1 or is_retryable(error):
                for ended in many:
                    self._tell(ended, _LOST)
                raise
            await self._keep_each(many)
            return
        stepped, later = iter(taken), iter(postponed)
        for ended, change in zip(many, changes, strict=True):
            is_kept = next(stepped) is not None if isinstance(change, Step) else next(later)
            self._tell(ended, _becomes(ended.outcome) if is_kept else _STALE)

    async def _keep_each(self, many: Sequence[Attempted]) -> None:
        failures: list[Exception] = []
        for ended in many:
            try:
                await self.keep(ended)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _change(self, ended: Attempted) -> Step | tuple[Job, float]:
        """What an outcome does to its job: a step, or another attempt after so many seconds."""
        work: dict[str, Any] = {
            "job": ended.job,
            "known": ended.record,
            "took": round(ended.took, 6),
            "retries": ended.attempt - 1,
        }
        match ended.outcome:
            case Done():
                return Step(to=self.stage.emits, done=ended.outcome, by=self.stage.name, **work)
            case Retry(_, after):
                usual = self._settings.retry_policy.delay(ended.attempt)
                seconds = usual if after is None else min(LONGEST_DELAY, max(0.0, after))
                return ended.job, seconds
            case Reject(reason, gave_up):
                # A job that failed is dealt with; one that was given up is kept as well.
                letter = None
                if gave_up:
                    topic = self._settings.dead_letters(ended.message.topic)
                    letter = (topic, self._letter(ended.message, reason, ended.attempt))
                failed: dict[str, Any] = {"reason": reason, "attempts": ended.attempt}
                return Step(to=JobStage.FAILED, dead_letter=letter, **failed, **work)

    def _tell(self, ended: Attempted, became: _Became) -> None:
        if became.outcome in ("done", "failed"):
            self._tell_end(ended, became.reason)
        self._handled(ended.subject, became, time.monotonic() - ended.began)

    def _tell_end(self, ended: Attempted, reason: str | None) -> None:
        """Once a job: most outcomes only lead to the next stage."""
        if reason is None and not self._store.pipeline.is_end(self.stage.emits):
            return
        subject = replace(ended.subject, attempt=ended.attempt, reason=reason)
        if isinstance(ended.outcome, Reject) and ended.outcome.gave_up:
            topic = self._settings.dead_letters(ended.message.topic)
            self._observer.dead_lettered(subject, topic, ended.outcome.reason)
        self._observer.ended(subject, self.stage.name)

    async def _is_no_job(self, message: Incoming, reason: str) -> None:
        """What does not decode is a dead letter, or is put back until somebody can read it."""
        subject = subject_of(message.attributes, message.times_put_back + 1)
        self._observer.received(subject, self._settings.subscription)
        subject = replace(subject, reason=reason)
        tried = message.times_put_back + 1
        if self._settings.invalid == "retry" and tried < self._settings.max_attempts:
            seconds = self._settings.retry_policy.delay(tried)
            await self._store.send(Said(message.topic, put_back(message), seconds))
            self._observer.handled(subject, self.stage.name, "retry", 0.0)
            return
        await self._bury(message, reason, tried)
        self._observer.handled(subject, self.stage.name, "reject", 0.0)

    async def _bury(self, message: Incoming, reason: str, attempt: int) -> None:
        topic = self._settings.dead_letters(message.topic)
        await self._store.send(Said(topic, self._letter(message, reason, attempt)))
        self._observer.dead_lettered(subject_of(message.attributes, attempt), topic, reason)

    def _letter(self, message: Incoming, reason: str, attempt: int) -> Draft:
        if message.subscription is None:
            # Read from the log; its name says which stage it was all the same.
            message = replace(message, subscription=self._settings.subscription)
        return dead_letter(message, reason, attempt)

    async def _patiently(self, change: Callable[[], Awaitable[T]]) -> T:
        done = await retry(change, _KEEPING, on_failure=self.outage.met)
        self.outage.over()
        return done


def _becomes(outcome: Outcome) -> _Became:
    """What becomes of a job by an outcome that is kept."""
    match outcome:
        case Done():
            return _Became("done")
        case Retry(reason, _):
            return _Became("retry", reason)
        case Reject(reason, _):
            return _Became("failed", reason)


class _Watch:
    """Looks now and then whether the work that the current task does is still wanted, and cancels
    the task if it is not. Most work ends before the first look and costs a timer."""

    def __init__(self, is_wanted: Callable[[], Awaitable[bool]]) -> None:
        self._is_wanted = is_wanted
        self._work = asyncio.current_task()
        self._looking: asyncio.Task[None] | None = None
        self._cancelled = False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_CANCEL_CHECK, self._begin)

    def took_back(self) -> bool:
        """Whether the task was cancelled by this, and by nobody else; then it goes on."""
        return self._cancelled and self._uncancel() == 0

    def end(self) -> None:
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        if self._cancelled:
            # The work would not be stopped, and has ended by itself.
            self._uncancel()

    def _uncancel(self) -> int:
        self._cancelled = False
        return 0 if self._work is None else self._work.uncancel()

    def _begin(self) -> None:
        # Owned here: ended with the work it looks after.
        self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while await self._is_wanted():  # noqa: ASYNC110 - another process cancels, and tells nobody
            await asyncio.sleep(_CANCEL_CHECK)
        self._cancelled = True
        if self._work is not None:
            self._work.cancel()
