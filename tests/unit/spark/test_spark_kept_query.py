"""Queries that are kept running, without Spark."""

import json
import logging

import pytest
from prometheus_client import REGISTRY

from penstock.errors import FailedPreconditionError
from penstock.spark.jobs import kept_query
from penstock.spark.jobs.kept_query import KeptQuery, end_all, look_at_all
from penstock.spark.jobs.progress import reached


class Query:
    """Runs until it fails."""

    def __init__(self):
        self.failure = None
        self.recentProgress = []
        self.status = {"message": "Initializing sources", "isTriggerActive": False}
        self.stopped = False

    @property
    def lastProgress(self):  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None

    @property
    def isActive(self):  # noqa: N802
        return self.failure is None and not self.stopped

    def exception(self):
        return self.failure

    def stop(self):
        self.stopped = True


class Time:
    now = 100.0
    meanwhile = staticmethod(lambda: None)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.meanwhile()


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
    assert not kept.is_starting
    look_until_started(kept, time, starts, 1)
    kept.end(0)
    assert starts.made[0].stopped


def test_a_query_that_could_not_be_started_while_the_broker_was_away_is_started_again(time):
    told = "penstock.errors.UnavailableError: The NATS server has no JetStream for this user now"
    away = RuntimeError(f"Traceback (most recent call last):\n  File x, in main\n{told}")
    starts = Starts(away)
    kept = KeptQuery("metadata", starts)
    assert kept.is_down
    look_until_started(kept, time, starts, 1)


def test_a_query_that_is_wrong_is_not_started_again(time):
    with pytest.raises(RuntimeError, match="Topic not found"):
        KeptQuery("metadata", Starts(RuntimeError("Topic not found: 'nowhere'")))


@pytest.mark.parametrize("says", ["Processing new data", "Waiting for next trigger"])
def test_a_query_is_starting_until_its_source_is_there(time, says):
    starts = Starts()
    kept = KeptQuery("metadata", starts)
    assert kept.is_starting
    starts.made[0].status["message"] = "Getting offsets from the source"
    assert kept.is_starting
    starts.made[0].status["message"] = says
    assert not kept.is_starting


def test_a_query_that_has_ended_a_batch_is_not_starting_whatever_it_does(time):
    starts = Starts()
    kept = KeptQuery("metadata", starts)
    starts.made[0].recentProgress = [{}]
    assert not kept.is_starting


def progress(batch, rows=5, run="r1"):
    source = {
        "numInputRows": rows,
        "endOffset": json.dumps({"orders": batch * 5 + 6}),
        "latestOffset": '{"orders": 100}',
    }
    durations = {"triggerExecution": 1500, "addBatch": 900}
    return {"batchId": batch, "runId": run, "sources": [source], "durationMs": durations}


def sample(metric, **labels):
    return REGISTRY.get_sample_value(f"penstock_pipeline_{metric}", labels) or 0.0


def test_each_batch_is_counted_once_with_its_phases(time):
    starts = Starts()
    kept = KeptQuery("counted", starts)
    query = starts.made[0]
    for batches in ([0], [0, 1], [0, 1], [0, 1, 2, 3, 4]):
        query.recentProgress = [progress(batch, run="counted") for batch in batches]
        kept.look()
        time.now += 1
    assert sample("messages_total", query="counted") == 25
    assert sample("batch_seconds_count", query="counted") == 5
    assert sample("phase_seconds_total", query="counted", phase="addBatch") == 4.5
    assert reached("counted") == {"orders": 26}


def test_a_line_says_how_far_a_query_is_behind_where_that_is_known(time, caplog):
    starts = Starts()
    kept = KeptQuery("telling", starts)
    spooled = progress(1, run="telling")
    spooled["sources"][0].update(endOffset='{"segment": 4}', latestOffset='{"segment": 9}')
    with caplog.at_level(logging.INFO):
        for last in (progress(0, run="telling"), spooled):
            starts.made[0].recentProgress = [last]
            kept.look()
            time.now += 1
    assert [record.message for record in caplog.records] == [
        "telling: 5 messages in 1.50 s, 94 behind",
        "telling: 5 messages in 1.50 s",
    ]


def test_what_was_never_counted_is_nothing_and_not_missing(time):
    KeptQuery("fresh", Starts())
    for metric in ("messages_total", "failures_total", "batch_seconds_count"):
        assert REGISTRY.get_sample_value(f"penstock_pipeline_{metric}", {"query": "fresh"}) == 0


def test_what_a_query_said_before_it_failed_is_counted_too(time):
    starts = Starts()
    kept = KeptQuery("failing", starts)
    starts.made[0].recentProgress = [progress(0, run="failing")]
    starts.made[0].failure = RuntimeError("the database is away")
    kept.look()
    assert sample("messages_total", query="failing") == 5
    assert (sample("running", query="failing"), sample("failures_total", query="failing")) == (0, 1)
    look_until_started(kept, time, starts, 2)
    assert (sample("running", query="failing"), sample("starts_total", query="failing")) == (1, 2)


def test_a_query_that_failed_says_so_until_it_has_done_something(time):
    starts = Starts()
    kept = KeptQuery("ailing", starts)
    assert kept.lacks is None
    starts.made[0].failure = RuntimeError("could not connect to db.internal")
    kept.look()
    assert kept.lacks == "query ailing failed and is started again; the log says why"
    look_until_started(kept, time, starts, 2)
    time.now += 1
    kept.look()
    assert kept.lacks is not None
    starts.made[1].recentProgress = [progress(0, run="ailing")]
    time.now += 1
    kept.look()
    assert kept.lacks is None


def test_a_batch_with_nothing_for_it_is_a_batch_that_ended(time):
    """A stage looks at the messages of others, too."""
    starts = Starts()
    kept = KeptQuery("choosy", starts)
    starts.made[0].failure = RuntimeError("the database is away")
    look_until_started(kept, time, starts, 2)
    starts.made[1].recentProgress = [progress(0, rows=0, run="choosy")]
    time.now += 1
    kept.look()
    assert kept.lacks is None


def test_failures_with_nothing_to_do_between_them_are_not_failures_in_a_row(time):
    starts = Starts()
    kept = KeptQuery("idle", starts)
    for count in range(2, 40):
        starts.made[-1].failure = RuntimeError("the broker is away")
        look_until_started(kept, time, starts, count)
        starts.made[-1].status["message"] = "Waiting for data to arrive"
        time.now += 1
        kept.look()
        assert kept.lacks is None


def test_a_query_is_ended_when_it_waits_or_as_soon_as_a_batch_has_ended(time):
    starts = Starts()
    kept = KeptQuery("busy", starts)
    query = starts.made[0]
    query.status["isTriggerActive"] = True
    begun = time.now

    def work():
        if time.now > begun + 7:
            query.recentProgress = [progress(0, run="busy")]

    time.meanwhile = work
    kept.end(drain=60)
    assert query.stopped
    assert begun + 7 < time.now < begun + 8


def test_a_query_that_asks_in_vain_whether_there_is_more_is_ended_at_once(time):
    starts = Starts()
    kept = KeptQuery("asking", starts)
    starts.made[0].status = {"message": "Getting offsets from penstock", "isTriggerActive": True}
    begun = time.now
    kept.end(drain=60)
    assert (starts.made[0].stopped, time.now) == (True, begun)


def test_a_batch_is_not_waited_for_beyond_the_drain(time):
    starts = Starts()
    kept = KeptQuery("slow", starts)
    starts.made[0].status["isTriggerActive"] = True
    begun = time.now
    kept.end(drain=60)
    assert starts.made[0].stopped
    assert time.now < begun + 61


def test_all_queries_together_are_not_waited_for_beyond_the_drain(time):
    starts = [Starts(), Starts(), Starts()]
    kept = [KeptQuery(name, start) for name, start in zip("abc", starts, strict=True)]
    for start in starts:
        start.made[0].status["isTriggerActive"] = True
    begun = time.now
    end_all(kept, drain=60)
    assert all(start.made[0].stopped for start in starts)
    assert time.now < begun + 61


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
