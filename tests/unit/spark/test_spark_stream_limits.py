"""How much a batch waits for, and which topics it is of."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TopicNotFoundError,
    UnavailableError,
)
from penstock.spark.behind import offsets_of
from penstock.spark.options import SourceOptions
from penstock.spark.schema import source_schema
from penstock.spark.source import stream
from penstock.spark.source.choice import is_matched
from penstock.spark.source.planner import Planner
from penstock.spark.source.stream import LogStreamReader
from tests.support.range_logs import FakeRangeLog


class Time:
    """Passes only when somebody sleeps."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def time(monkeypatch):
    made = Time()
    monkeypatch.setattr(stream, "time", made)
    return made


@pytest.fixture
def log():
    made = FakeRangeLog()
    made.fill("orders", 3)
    return made


def reader(log, **options):
    given = {"url": "nats://nowhere", "topic": "orders", "minOffsetsPerTrigger": "5", **options}
    made = LogStreamReader(SourceOptions.of(given), source_schema(headers=False))
    made._open = Planner(made._options, log)
    return made


def latest(reading, start):
    """The sequences; offsets also say which topics they count in."""
    return offsets_of(reading.latestOffset(start, ReadAllAvailable()))


def test_a_batch_waits_until_there_is_enough(log, time):
    waiting = reader(log)
    assert latest(waiting, {"orders": 1}) == {"orders": 1}
    log.fill("orders", 2)
    assert latest(waiting, {"orders": 1}) == {"orders": 6}


def test_a_batch_does_not_wait_longer_than_it_may(log, time):
    waiting = reader(log, maxTriggerDelay="30s")
    assert latest(waiting, {"orders": 1}) == {"orders": 1}
    time.now += 30
    assert latest(waiting, {"orders": 1}) == {"orders": 4}
    # What comes next has its own time.
    log.fill("orders", 1)
    assert latest(waiting, {"orders": 4}) == {"orders": 4}


def test_what_is_to_be_worked_through_now_is_not_waited_for(log, time):
    now = reader(log)
    now.prepareForTriggerAvailableNow()
    assert latest(now, {"orders": 1}) == {"orders": 4}


@pytest.fixture
def there(monkeypatch):
    """The topics that a broker lists."""
    listed = ["orders", "orders-old", "bills"]

    def matching(_, pattern):
        if not listed:
            raise UnavailableError("the server is away")
        return tuple(topic for topic in sorted(listed) if is_matched(topic, pattern))

    monkeypatch.setattr("penstock.spark.source.planner.matching", matching)
    return listed


def matched(log, **options):
    given = {"url": "nats://nowhere", "subscribePattern": "orders.*", **options}
    made = LogStreamReader(SourceOptions.of(given), source_schema(headers=False))
    made._open = Planner(made._options, log)
    return made


def test_a_pattern_is_the_whole_name_of_every_topic_there_is(log, time, there):
    log.fill("orders-old", 1)
    reading = matched(log)
    assert offsets_of(reading.initialOffset()) == {"orders": 1, "orders-old": 1}
    found = latest(reading, {"orders": 1, "orders-old": 1})
    assert found == {"orders": 4, "orders-old": 2}


def test_a_topic_that_comes_later_is_read_from_its_beginning(log, time, there):
    log.fill("orders-old", 1)
    reading = matched(log, startingOffsets="latest")
    at = reading.initialOffset()
    assert latest(reading, at) == {"orders": 4, "orders-old": 2}
    there.append("orders-new")
    log.fill("orders-new", 2)
    assert "orders-new" not in latest(reading, at)
    time.now += 10
    later = latest(reading, at)
    assert later == {"orders": 4, "orders-new": 3, "orders-old": 2}
    parts = reading.partitions(at, later)
    assert [(part.topic, part.first, part.last) for part in parts] == [("orders-new", 1, 2)]


def test_a_batch_of_before_a_restart_has_the_topics_it_had(log, time, there):
    log.fill("orders-old", 1)
    there.remove("orders-old")
    again = matched(log)
    parts = again.partitions({"orders": 1}, {"orders": 4, "orders-old": 2})
    assert [(part.topic, part.first, part.last) for part in parts] == [
        ("orders", 1, 3),
        ("orders-old", 1, 1),
    ]


def test_a_topic_that_was_read_and_is_gone_is_missed(log, time, there):
    there.remove("orders-old")
    reading = matched(log)
    with pytest.raises(TopicNotFoundError, match="orders-old"):
        latest(reading, {"orders": 1, "orders-old": 9})
    with pytest.raises(FailedPreconditionError, match="no longer name"):
        latest(reading, {"orders": 1, "bills": 9})


def test_new_topics_are_not_looked_for_while_the_broker_is_away(log, time, there):
    log.fill("orders-old", 1)
    reading = matched(log)
    at = reading.initialOffset()
    there.clear()
    time.now += 10
    assert latest(reading, at) == {"orders": 4, "orders-old": 2}


def test_a_stream_that_is_to_begin_beyond_the_end_of_a_topic_is_refused(log, time):
    begin = reader(log, startingOffsets='{"orders": 4}').initialOffset()
    assert offsets_of(begin) == {"orders": 4}
    with pytest.raises(InvalidArgumentError, match=r"begins at 5, .* 'orders' will be 4"):
        reader(log, startingOffsets='{"orders": 5}').initialOffset()


def idle(reading, at, time, seconds):
    """Ask as Spark does, until something comes or for so long."""
    until = time.now + seconds
    while time.now < until and latest(reading, at) == offsets_of(at):
        time.now += 0.01


def asked(log):
    return sum(call == "extent" for call in log.calls)


def test_the_longer_nothing_comes_the_less_is_the_broker_asked(log, time):
    reading = reader(log)
    at = reading.latestOffset({"orders": 4}, ReadAllAvailable())
    idle(reading, at, time, 1)
    assert asked(log) < 20
    idle(reading, at, time, 60)
    before = asked(log)
    idle(reading, at, time, 60)
    assert 30 < asked(log) - before <= 60


@pytest.mark.parametrize(("quiet", "within"), [(1, 0.2), (4, 0.4), (3600, 1.2)])
def test_what_comes_is_seen_soon_however_long_nothing_came(log, time, quiet, within):
    reading = reader(log, minOffsetsPerTrigger="1")
    at = reading.latestOffset({"orders": 4}, ReadAllAvailable())
    idle(reading, at, time, quiet)
    log.fill("orders", 1)
    came = time.now
    idle(reading, at, time, 10)
    assert time.now - came < within
    # And what follows it is not waited for.
    before = asked(log)
    log.fill("orders", 1)
    assert latest(reading, {"orders": 5}) == {"orders": 6}
    assert asked(log) > before
