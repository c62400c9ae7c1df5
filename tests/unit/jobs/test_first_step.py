"""Work that ends without waiting needs no timer; work that waits goes on as if it were awaited."""

import asyncio

import pytest

from penstock.jobs import Done, JobStage, Retry, Stage
from penstock.jobs.pipeline.first_step import FirstStep
from tests.support.job_samples import JOBS

JOB = JOBS["audio"]


async def test_what_waits_for_nothing_has_ended():
    async def work():
        return 7

    step = FirstStep(work())
    assert (step.ended, step.result) == (True, 7)
    assert await step == 7


async def test_what_the_first_step_raises_is_raised_at_once():
    async def work():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        FirstStep(work())


async def test_what_waits_goes_on_where_it_waited():
    answer = asyncio.get_running_loop().create_future()

    async def work():
        first = await answer
        await asyncio.sleep(0)
        return first + await asyncio.sleep(5, 1)

    step = FirstStep(work())
    assert not step.ended
    asyncio.get_running_loop().call_later(1, answer.set_result, 41)
    assert await step == 42


async def test_what_it_waits_for_may_fail_and_be_caught():
    answer = asyncio.get_running_loop().create_future()

    async def work():
        try:
            await answer
        except LookupError:
            return "caught"

    step = FirstStep(work())
    answer.set_exception(LookupError())
    assert await step == "caught"


async def test_cancelling_who_awaits_it_cancels_it_once_and_lets_it_tidy_up():
    seen = []

    async def work():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(1)
            seen.append("tidy")
            raise

    async def caller():
        await FirstStep(work())

    task = asyncio.create_task(caller())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled", "tidy"]


def stage(handler, **options):
    return Stage(
        name="transcription",
        consumes=JobStage.METADATA_READY,
        emits=JobStage.TRANSCRIPT_COMPLETE,
        handler=handler,
        **options,
    )


async def test_a_handler_that_waits_for_nothing_takes_no_timer(monkeypatch):
    async def handle(_):
        return Done()

    timers = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_at", lambda *given, **_: timers.append(given))
    assert await stage(handle, time_limit=5).run(JOB) == Done()
    assert timers == []


async def test_a_time_limit_counts_from_the_beginning_of_the_first_step(monkeypatch):
    loop = asyncio.get_running_loop()
    now = loop.time
    slow = 0.0

    async def handle(_):
        nonlocal slow
        slow = 4.0
        await asyncio.sleep(2)
        return Done()

    monkeypatch.setattr(loop, "time", lambda: now() + slow)
    assert await stage(handle, time_limit=5).run(JOB) == Retry("time-limit")
    slow = 0.0
    assert await stage(handle, time_limit=7).run(JOB) == Done()
