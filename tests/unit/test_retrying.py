"""One loop for everything that is tried again."""

import asyncio
import logging
from itertools import pairwise

import pytest

from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.lifetime import running_beside
from penstock.retrying import (
    Failures,
    Outage,
    Persistence,
    do_every,
    keep_doing,
    retry,
    retry_blocking,
)
from penstock.rules.backoff import Backoff

STEADY = Persistence(backoff=Backoff(initial=1.0, maximum=8.0))


def failing(times, error=UnavailableError):
    left = iter(range(times))

    def call():
        if next(left, None) is not None:
            raise error("away")
        return "done"

    return call


def async_call(call):
    async def wrapped():
        return call()

    return wrapped


async def test_it_is_tried_until_it_succeeds_and_each_failure_is_told():
    told = []
    assert await retry(async_call(failing(3)), STEADY, on_failure=lambda *f: told.append(f)) == (
        "done"
    )
    assert len(told) == 3
    assert all(isinstance(error, UnavailableError) for error, _ in told)


async def test_attempts_count_the_first():
    persistence = Persistence(backoff=STEADY.backoff, attempts=3)
    assert await retry(async_call(failing(2)), persistence) == "done"
    with pytest.raises(UnavailableError):
        await retry(async_call(failing(3)), persistence)


async def test_no_attempt_begins_after_the_time_is_up():
    began = asyncio.get_running_loop().time()
    with pytest.raises(UnavailableError):
        await retry(async_call(failing(10**6)), Persistence(backoff=STEADY.backoff, within=20.0))
    assert asyncio.get_running_loop().time() - began <= 20.0


async def test_what_is_not_worth_another_attempt_is_raised_at_once():
    told = []
    with pytest.raises(InvalidArgumentError):
        await retry(
            async_call(failing(1, InvalidArgumentError)),
            STEADY,
            on_failure=lambda *f: told.append(f),
        )
    assert told == []


async def test_a_cancelled_pause_ends_the_loop():
    task = asyncio.create_task(retry(async_call(failing(10**6)), STEADY))
    await asyncio.sleep(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_kept_doing_goes_on_after_success_and_failure_until_it_is_told():
    tries, told = iter([None, UnavailableError("1"), UnavailableError("2"), None]), []
    done = []

    async def step():
        done.append(asyncio.get_running_loop().time())
        if (error := next(tries)) is not None:
            raise error

    await keep_doing(
        step,
        Failures(STEADY),
        until=lambda: len(done) == 4,
        on_failure=lambda error, pause: told.append((str(error), pause)),
    )
    assert [text for text, _ in told] == ["1", "2"]
    assert done[2] - done[1] == pytest.approx(told[0][1])
    assert done[3] - done[2] == pytest.approx(told[1][1])


async def test_what_is_kept_doing_ends_with_the_error_that_is_given_up():
    with pytest.raises(InvalidArgumentError):
        await keep_doing(async_call(failing(1, InvalidArgumentError)), Failures(STEADY))


async def test_a_success_forgets_the_failures_of_what_is_kept_doing():
    twice = Persistence(backoff=STEADY.backoff, attempts=2)
    outcomes = iter([UnavailableError("a"), None, UnavailableError("b"), None])
    left = [4]

    async def step():
        left[0] -= 1
        if (error := next(outcomes)) is not None:
            raise error

    await keep_doing(step, Failures(twice), until=lambda: not left[0])


async def test_a_pause_that_somebody_ends_early_is_over():
    paused = []

    async def rest(pause):
        paused.append(pause)

    began = asyncio.get_running_loop().time()
    await keep_doing(
        async_call(failing(3)), Failures(STEADY), until=lambda: len(paused) == 3, rest=rest
    )
    assert asyncio.get_running_loop().time() == began


async def test_what_is_done_now_and_then_goes_on_whatever_it_raises_and_is_told_once(caplog):
    caplog.set_level("INFO")
    tries = iter([None, UnavailableError("1"), ZeroDivisionError("2"), UnavailableError("3")])
    done = []

    async def step():
        done.append(asyncio.get_running_loop().time())
        if (error := next(tries, None)) is not None:
            raise error

    outage = Outage(logging.getLogger("penstock.test"), "Nothing is swept")
    async with running_beside(do_every(600.0, step, outage)):
        await asyncio.sleep(1900.0)
    pauses = [after - before for before, after in pairwise(done)]
    assert pauses[0] == pytest.approx(600.0) and max(pauses[1:4]) <= 4.0
    assert pauses[4:] == pytest.approx([600.0] * 2)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_the_blocking_loop_decides_the_same():
    quick = Persistence(backoff=Backoff(initial=0.0001, maximum=0.0001), attempts=3)
    assert retry_blocking(failing(2), quick) == "done"
    with pytest.raises(UnavailableError):
        retry_blocking(failing(3), quick)
    with pytest.raises(InvalidArgumentError):
        retry_blocking(failing(1, InvalidArgumentError), quick)


def test_a_success_forgets_the_failures_before_it():
    failures = Failures(Persistence(backoff=STEADY.backoff, within=10.0))
    full = {"chance": lambda: 1.0}
    assert failures.pause_after(UnavailableError(""), 0.0, **full) == 1.0
    assert failures.pause_after(UnavailableError(""), 1.0, **full) == 2.0
    failures.clear()
    assert failures.pause_after(UnavailableError(""), 100.0, **full) == 1.0
    assert failures.pause_after(UnavailableError(""), 109.0, **full) is None
