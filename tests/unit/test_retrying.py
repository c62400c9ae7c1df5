"""One loop for everything that is tried again."""

import asyncio

import pytest

from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.retrying import Failures, Persistence, retry, retry_blocking
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
