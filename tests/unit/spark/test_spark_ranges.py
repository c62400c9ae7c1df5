"""Patience with a broker that is away."""

import pytest

from penstock.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    TopicNotFoundError,
    UnavailableError,
)
from penstock.rules.backoff import Backoff
from penstock.spark.ranges import PatientRanges
from tests.support.range_logs import FakeRangeLog

SHORT = Backoff(initial=1e-6, maximum=1e-6)
AWAY = UnavailableError("away")


def patient(log, patience=60.0, **options):
    return PatientRanges(log, patience, backoff=SHORT, **options)


def test_what_has_worked_is_tried_again_when_it_fails():
    log = FakeRangeLog()
    log.fill("orders", 3)
    ranges = patient(log)
    ranges.extent("orders")
    log.failures = [AWAY, DeadlineExceededError("slow"), AWAY]
    assert ranges.extent("orders").last == 3
    assert log.calls == ["extent"] * 5


def test_an_address_that_never_worked_is_not_an_outage():
    log = FakeRangeLog(AWAY)
    log.fill("orders", 3)
    with pytest.raises(UnavailableError):
        patient(log).extent("orders")
    log.failures = [AWAY]
    with pytest.raises(UnavailableError):
        list(patient(log).read("orders", 1, 3))
    assert len(log.calls) == 2


def test_a_proven_address_is_waited_for_from_the_first_call_on():
    log = FakeRangeLog(AWAY, AWAY)
    log.fill("orders", 3)
    assert patient(log, proven=True).extent("orders").last == 3


def test_what_will_not_pass_is_said_at_once():
    log = FakeRangeLog()
    with pytest.raises(TopicNotFoundError):
        patient(log, proven=True).extent("orders")
    assert log.calls == ["extent"]


def test_patience_ends():
    log = FakeRangeLog(*[AWAY] * 10)
    with pytest.raises(UnavailableError):
        patient(log, 1e-9, proven=True).extent("orders")
    assert len(log.calls) == 1


@pytest.mark.parametrize("half_way", [False, True], ids=["before", "between batches"])
def test_reading_goes_on_where_it_was(half_way):
    log = FakeRangeLog(AWAY, AWAY, half_way=half_way)
    log.fill("orders", 3500)
    found = list(patient(log, proven=True).read("orders", 11, 3400))
    assert [n for columns in found for n in columns.sequences] == list(range(11, 3401))
    assert [int(data) for columns in found for data in columns.data] == list(range(11, 3401))
    if half_way:
        assert log.calls[:3] == ["read 11", "read 1011", "read 2011"]


def test_everything_goes_through_and_closing_closes():
    log = FakeRangeLog(AWAY)
    log.fill("orders", 5)
    ranges = patient(log, proven=True)
    version = ranges.set_mark("marks", "a", b"1", replaces=0)
    assert ranges.mark("marks", "a") == (b"1", version)
    with pytest.raises(FailedPreconditionError):
        ranges.set_mark("marks", "a", b"2", replaces=0)
    ranges.purge("orders", 3)
    assert ranges.extent("orders").first == 3
    assert ranges.first_since("orders", 4_000_000) == 4
    ranges.close()
    assert log.closed == 1
