"""For how long the event loop has been running."""

import asyncio

import pytest

from penstock.brokers.nats.aio.running import Running
from penstock.testing import settled
from tests.support.scenes import now


def begun():
    made = Running()
    made.begin()
    return made


def stand_still(seconds):
    asyncio.get_running_loop()._jumping.now += seconds


async def test_while_it_runs_seconds_are_seconds():
    running = begun()
    await asyncio.sleep(10.2)
    assert running.before(3) == pytest.approx(now() - 3)
    assert running.before(0.1) == pytest.approx(now() - 0.1)


async def test_those_in_which_it_stood_still_do_not_count():
    running = begun()
    await asyncio.sleep(10.2)
    for seconds in (60, 7):
        stand_still(seconds)
        await settled()
    assert running.before(3) == pytest.approx(7.2, abs=0.6)


async def test_it_has_not_run_before_it_began():
    running = begun()
    await asyncio.sleep(1)
    assert running.before(3) == pytest.approx(-2)


async def test_one_that_was_ended_runs_no_more():
    running = begun()
    running.end()
    await asyncio.sleep(10)
    assert running.before(3) <= -3
