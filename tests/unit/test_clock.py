import asyncio
import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import PreciseTime
from penstock.clock import Alarm, Clock, to_ns
from penstock.testing import VirtualClock

moments = st.integers(0, 4_000_000_000 * 10**9)


@given(moments)
def test_nanoseconds_survive_every_round_trip(ns):
    moment = PreciseTime.from_ns(ns)
    assert moment.timestamp_ns() == ns
    assert moment.nanosecond == ns % 10**9
    assert pickle.loads(pickle.dumps(moment)) == moment  # noqa: S301
    assert copy.deepcopy(moment).timestamp_ns() == ns
    assert moment.isoformat().endswith(f".{ns % 10**9:09d}+00:00")


@given(moments, moments)
def test_precise_times_order_by_nanoseconds(a, b):
    first, second = PreciseTime.from_ns(a), PreciseTime.from_ns(b)
    assert (first < second, first <= second, first == second) == (a < b, a <= b, a == b)
    assert (first > second, first >= second, first != second) == (a > b, a >= b, a != b)


def test_a_precise_time_is_a_datetime_like_any_other():
    moment = PreciseTime.from_ns(1_000_000_000_123_456_789)
    plain = datetime(2001, 9, 9, 1, 46, 40, 123456, tzinfo=UTC)
    assert isinstance(moment, datetime)
    assert moment > plain
    assert moment != plain
    assert PreciseTime.from_ns(1_000_000_000_123_456_000) == plain
    assert hash(PreciseTime.from_ns(1_000_000_000_123_456_000)) == hash(plain)
    assert moment - plain == timedelta(0)
    assert moment + timedelta(seconds=1) > moment
    assert moment != "now"
    assert str(moment) == "2001-09-09 01:46:40.123456789+00:00"
    assert moment.isoformat(timespec="seconds") == "2001-09-09T01:46:40+00:00"
    assert repr(moment) == "PreciseTime(2001-09-09T01:46:40.123456789+00:00)"


def test_a_precise_time_keeps_its_zone_and_digits_when_pickled():
    moment = PreciseTime.from_ns(1_000_000_000_123_456_789)
    for other in (moment.astimezone(timezone(timedelta(hours=5))), moment.replace(tzinfo=None)):
        restored = pickle.loads(pickle.dumps(other))  # noqa: S301
        assert (restored, restored.tzinfo) == (other, other.tzinfo)
    assert pickle.loads(pickle.dumps(moment)).nanosecond == 123_456_789  # noqa: S301


def test_any_aware_datetime_has_its_nanoseconds():
    tz = timezone(timedelta(hours=2))
    assert to_ns(datetime(1970, 1, 1, 2, 0, 1, 5, tzinfo=tz)) == 1_000_005_000


async def test_an_alarm_rings_at_the_earliest_time_asked_for():
    clock = Clock()
    rung: list[float] = []
    later = [25.0, None]

    def ring() -> float | None:
        rung.append(clock.monotonic())
        return later.pop(0)

    alarm = Alarm(clock, ring)
    alarm.set(None)
    alarm.set(20)
    alarm.set(30)
    alarm.set(10)
    await asyncio.sleep(100)
    assert rung == [10, 25]
    alarm.set(200)
    alarm.cancel()
    await asyncio.sleep(200)
    assert len(rung) == 2


async def test_virtual_time_passes_only_when_there_is_nothing_else_to_do():
    clock = VirtualClock()
    began, began_ns = clock.monotonic(), clock.time_ns()
    await asyncio.sleep(3600)
    assert clock.monotonic() - began == 3600
    assert clock.time_ns() - began_ns == 3600 * 10**9
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 86_400)


async def test_virtual_time_lets_threads_finish():
    import time

    assert await asyncio.to_thread(lambda: time.sleep(0.05) or "done") == "done"
