"""Queries that are kept running, without Spark."""

import pytest

from penstock.errors import FailedPreconditionError
from penstock.spark.jobs import kept_query
from penstock.spark.jobs.kept_query import KeptQuery, look_at_all


class Query:
    """Runs until it fails."""

    def __init__(self):
        self.failure = None
        self.recentProgress = []
        self.status = {"message": "Initializing sources", "isTriggerActive": False}
        self.stopped = False

    @property
    def isActive(self):  # noqa: N802
        return self.failure is None and not self.stopped

    def exception(self):
        return self.failure

    def stop(self):
        self.stopped = True


class Time:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    made = Time()
    monkeypatch.setattr(kept_query, "time", made)
    return made


class Starts:
    """Starts queries, after so many that could not be."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.made = []

    def __call__(self):
        if self.failures:
            raise self.failures.pop(0)
        self.made.append(Query())
        return self.made[-1]


def look_until_started(kept, time, starts, count):
    for _ in range(1000):
        kept.look()
        if len(starts.made) == count:
            return
        time.now += 1
    pytest.fail("it was not started again")


def test_a_query_that_fails_is_started_again(time):
    starts = Starts()
    kept = KeptQuery("metadata", starts)
    for count in (2, 3):
        starts.made[-1].failure = RuntimeError("the database is away")
        look_until_started(kept, time, starts, count)
    assert starts.made[-1].isActive


def test_a_query_that_fails_again_and_again_ends_the_pipeline(time):
    starts = Starts()
    kept = KeptQuery("metadata", starts)
    with pytest.raises(RuntimeError, match="always"):
        for _ in range(2000):
            starts.made[-1].failure = RuntimeError("always")
            kept.look()
            time.now += 10
    assert len(starts.made) == 21


def test_a_spark_that_does_not_heal_ends_the_pipeline_at_once(time):
    starts = Starts()
    kept = KeptQuery("metadata", starts)
    starts.made[-1].failure = RuntimeError("Task not serializable: Illegal size 5 of collection")
    with pytest.raises(FailedPreconditionError, match="start the pipeline again"):
        kept.look()


def test_a_query_that_a_busy_machine_could_not_start_is_started_again(time):
    starts = Starts(RuntimeError("[CANNOT_OPEN_SOCKET] Can not open socket: timed out"))
    kept = KeptQuery("metadata", starts)
    assert not kept.is_beginning
    look_until_started(kept, time, starts, 1)
    kept.end(0)
    assert starts.made[0].stopped


def test_a_query_that_is_wrong_is_not_started_again(time):
    with pytest.raises(RuntimeError, match="Topic not found"):
        KeptQuery("metadata", Starts(RuntimeError("Topic not found: 'nowhere'")))


def test_a_query_is_beginning_until_it_waits_or_has_ended_a_batch(time):
    starts = Starts()
    kept = KeptQuery("metadata", starts)
    assert kept.is_beginning
    starts.made[0].status["message"] = "Waiting for next trigger"
    assert not kept.is_beginning
    starts.made[0].status["message"] = "Processing new data"
    starts.made[0].recentProgress = [{}]
    assert not kept.is_beginning


def test_queries_that_are_down_are_started_one_after_the_other(time):
    starts = [Starts(), Starts(), Starts()]
    kept = [KeptQuery(name, start) for name, start in zip("abc", starts, strict=True)]
    for start in starts:
        start.made[-1].failure = RuntimeError("Python worker failed to connect back.")
    look_at_all(kept)
    assert all(one.is_down for one in kept)

    def started():
        time.now += 100
        look_at_all(kept)
        return [len(start.made) for start in starts]

    assert started() == [2, 1, 1]
    starts[0].made[-1].status["message"] = "Getting offsets from penstock"
    assert started() == [2, 1, 1]
    starts[0].made[-1].status["message"] = "Processing new data"
    assert started() == [2, 2, 1]
    starts[1].made[-1].failure = RuntimeError("Python worker failed to connect back.")
    assert started() == [2, 2, 2]
