"""A stage answers for every attempt, whatever its handler does."""

import asyncio
from collections.abc import Awaitable
from functools import partial

import pytest

from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.jobs import (
    MEDIA,
    AudioInfo,
    DocumentInfo,
    Done,
    Job,
    JobStage,
    Outcome,
    ProcessingJob,
    Reject,
    Retry,
    Stage,
    Text,
)
from penstock.media.errors import MediaError
from tests.support.job_samples import JOBS

JOB = JOBS["audio"]


def stage(handler, **options):
    return Stage(
        name="transcription",
        consumes=JobStage.METADATA_READY,
        emits=JobStage.TRANSCRIPT_COMPLETE,
        handler=handler,
        **options,
    )


def raising(error):
    async def handler(_):
        raise error

    return handler


async def test_what_a_handler_returns_is_the_outcome():
    async def handler(_):
        return Done(title="x")

    assert await stage(handler).run(JOB) == Done(title="x")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MediaError("malformed"), Reject("malformed")),
        (MediaError("network", permanent=False), Retry("network")),
        (MediaError("quota", permanent=False, retry_after=30.0), Retry("quota", 30.0)),
        (MediaError("quota", permanent=False, retry_after=-1.0), Retry("quota")),
        (UnavailableError("gone"), Retry("code-14")),
        (InvalidArgumentError("wrong"), Reject("code-3")),
        (OSError("disk"), Retry("machine")),
        (MemoryError(), Retry("machine")),
        (TimeoutError(), Retry("machine")),
        (ZeroDivisionError(), Retry("handler-error")),
    ],
)
async def test_what_a_handler_raises_is_judged_once(error, outcome):
    assert await stage(raising(error)).run(JOB) == outcome


async def test_a_handler_that_takes_too_long_is_cancelled_and_tried_again():
    cancelled = []

    async def handler(_):
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    assert await stage(handler, time_limit=5).run(JOB) == Retry("time-limit")
    assert cancelled


async def test_the_last_attempt_is_never_a_retry():
    async def handler(_):
        return Retry("busy")

    assert await stage(handler, max_attempts=3).run(JOB, 2) == Retry("busy")
    assert await stage(handler, max_attempts=3).run(JOB, 3) == Reject("busy", gave_up=True)


async def test_a_handler_that_returns_nothing_is_a_mistake_that_is_named(caplog):
    async def handler(_):
        return None

    assert await stage(handler).run(JOB) == Reject("handler-error")
    assert "must return Done, Retry or Reject" in caplog.text


async def test_a_job_at_another_stage_is_refused():
    other = Stage(
        name="metadata",
        consumes=JobStage.QUEUED,
        emits=JobStage.METADATA_READY,
        handler=raising(AssertionError),
    )
    with pytest.raises(InvalidArgumentError, match="takes no jobs that are MetadataReady"):
        await other.run(JOB)


@pytest.mark.parametrize(
    "outcome",
    [
        Reject("Cannot open zoe@example.org's talk"),
        Retry("no\nword"),
        Reject(""),
        Done(info=DocumentInfo(size=1, kind="pdf")),
        Done(info=AudioInfo(duration=-1.0, size=1, container="wav", codec="x")),
        Done(info=AudioInfo(duration=1.0, size=1, container="zoe@example.org", codec="x")),
        Done(text=Text(segments=[], language="Zoe's English")),
    ],
)
async def test_an_outcome_that_may_not_travel_is_a_mistake_of_the_handler(outcome, caplog):
    async def handler(_):
        return outcome

    assert await stage(handler).run(JOB) == Reject("handler-error")
    assert "zoe" not in caplog.text.lower()


def test_limits_are_those_of_the_settings_unless_the_stage_has_its_own():
    plain = stage(raising(AssertionError)).limited(5.0, 7)
    assert (plain.time_limit, plain.max_attempts) == (5.0, 7)
    own = stage(raising(AssertionError), time_limit=1.0, max_attempts=2).limited(5.0, 7)
    assert (own.time_limit, own.max_attempts) == (1.0, 2)


def plain(job):
    return Done()


def yields(job):
    yield Done()


async def takes_nothing():
    return Done()


async def takes_too_much(job, tools, more):
    return Done()


async def takes_words(job, *, tools):
    return Done()


async def takes_a_dict(job: dict) -> Done:
    return Done()


async def returns_nothing(job) -> None:
    pass


async def returns_text(job) -> "str | None":
    return "done"


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (plain, "is not async; write `async def`"),
        (yields, "yields; write `async def` and `return`"),
        (takes_nothing, "takes nothing; write one that takes a job, or a job and the tools"),
        (takes_too_much, "takes job, tools, more; write"),
        (takes_words, "takes job, tools; write"),
        (takes_a_dict, "takes dict; write one that takes Job"),
        (returns_nothing, "returns None; write one that returns Done, Retry, Reject"),
        (returns_text, "returns"),
    ],
)
def test_a_handler_that_can_never_work_is_refused_where_it_is_declared(handler, said):
    named = rf"stage 'transcription', {handler.__name__} \(.*test_stage.py:\d+\), {said}"
    with pytest.raises(InvalidArgumentError, match=named):
        stage(handler)


def test_a_handler_of_another_pipelines_jobs_is_refused_with_its_pipeline():
    class Laundry(Job, frozen=True, kw_only=True, tag="laundry"):
        pass

    async def wash(job: Laundry) -> Done:
        return Done()

    washing = Stage(
        name="washing", consumes=JobStage.TRANSCRIPT_COMPLETE, emits="Washed", handler=wash
    )
    with pytest.raises(InvalidArgumentError, match="takes Laundry; write one that takes AudioJob"):
        MEDIA.then(washing)


class Machine:
    async def work(self, job: ProcessingJob, tools: "NotImportable") -> Outcome:  # noqa: F821
        return Done()

    async def __call__(self, job: Job) -> Done | Retry:
        return Done()


def hands_on(job: Job) -> Awaitable[Outcome]:
    return Machine()(job)


async def takes_any(*job, **more):
    return Done()


@pytest.mark.parametrize(
    "handler",
    [
        Machine(),
        Machine().work,
        partial(Machine.work, Machine()),
        lambda job: hands_on(job),
        hands_on,
        takes_any,
    ],
)
def test_a_handler_may_be_anything_that_can_be_called_and_awaited(handler):
    assert stage(handler).handler is handler


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"time_limit": 0}, "time_limit of stage 'transcription' must be between"),
        ({"time_limit": "30"}, "time_limit of stage 'transcription' must be seconds, not str"),
        ({"time_limit": float("nan")}, "time_limit of stage 'transcription' must be between"),
        ({"max_attempts": 0}, "max_attempts of stage 'transcription' must be a whole number"),
        ({"max_attempts": 2.5}, "max_attempts of stage 'transcription' must be a whole number"),
    ],
)
def test_limits_that_cannot_be_are_refused_where_they_are_declared(limits, said):
    with pytest.raises(InvalidArgumentError, match=said):
        stage(raising(AssertionError), **limits)


async def test_cancelling_the_caller_cancels_the_handler():
    started = asyncio.Event()

    async def handler(_):
        started.set()
        await asyncio.sleep(1000)

    task = asyncio.ensure_future(stage(handler).run(JOB))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_stage_cannot_be_declared_against_the_stage_machine():
    wrong = Stage(
        name="wrong",
        consumes=JobStage.QUEUED,
        emits=JobStage.TRANSCRIPT_COMPLETE,
        handler=raising(AssertionError),
    )
    with pytest.raises(InvalidArgumentError, match="cannot take jobs"):
        MEDIA.in_place_of(wrong)
    with pytest.raises(InvalidArgumentError, match="cannot take jobs"):
        MEDIA.then(wrong)
