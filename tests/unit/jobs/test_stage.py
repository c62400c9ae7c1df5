"""A stage answers for every attempt, whatever its handler does."""

import asyncio

import pytest

from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.jobs import (
    MEDIA,
    AudioInfo,
    DocumentInfo,
    Done,
    JobStage,
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
