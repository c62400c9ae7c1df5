"""How much a batch waits for."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.spark.options import SourceOptions
from penstock.spark.schema import source_schema
from penstock.spark.source import stream
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


def test_a_batch_waits_until_there_is_enough(log, time):
    waiting = reader(log)
    assert waiting.latestOffset({"orders": 1}, ReadAllAvailable()) == {"orders": 1}
    log.fill("orders", 2)
    assert waiting.latestOffset({"orders": 1}, ReadAllAvailable()) == {"orders": 6}


def test_a_batch_does_not_wait_longer_than_it_may(log, time):
    waiting = reader(log, maxTriggerDelay="30s")
    assert waiting.latestOffset({"orders": 1}, ReadAllAvailable()) == {"orders": 1}
    time.now += 30
    assert waiting.latestOffset({"orders": 1}, ReadAllAvailable()) == {"orders": 4}
    # What comes next has its own time.
    log.fill("orders", 1)
    assert waiting.latestOffset({"orders": 4}, ReadAllAvailable()) == {"orders": 4}


def test_what_is_to_be_worked_through_now_is_not_waited_for(log, time):
    now = reader(log)
    now.prepareForTriggerAvailableNow()
    assert now.latestOffset({"orders": 1}, ReadAllAvailable()) == {"orders": 4}
