"""Queries of a pipeline as Spark is asked to start them, without Spark."""

import time
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace

import pytest
from pyspark.cloudpickle import dumps, loads

from penstock.errors import InvalidArgumentError
from penstock.jobs import load_settings
from penstock.jobs.pipeline.media import MEDIA_REFERENCE
from penstock.spark.jobs.event_source import EventSource
from penstock.spark.jobs.pipeline import PipelineOptions, SparkPipeline, queries_of
from penstock.spark.jobs.stage_source import StageTask
from penstock.spark.jobs.workplace import Workplace


class LoadedError(Exception):
    """A query was about to be loaded."""


class Session:
    """Writes down what is registered before something is loaded."""

    def __init__(self):
        self.registered = []
        self.dataSource = SimpleNamespace(register=self.registered.append)
        self.conf = SimpleNamespace(get=lambda *_: "local[2]")

    @property
    def readStream(self):  # noqa: N802
        raise LoadedError


@pytest.fixture
def settings(tmp_path):
    return load_settings(
        environ={}, url="nats://127.0.0.1", database=f"sqlite:///{tmp_path}/jobs.db"
    )


def test_stages_run_once_and_in_their_order_however_they_are_asked_for(settings, tmp_path):
    asked = ("projection", "transcription", "metadata", "transcription")
    options = PipelineOptions(checkpoints=str(tmp_path), stages=asked)
    assert queries_of(settings, options) == ("metadata", "transcription", "projection")


def test_a_history_without_the_projection_is_refused(settings, tmp_path):
    where = str(tmp_path)
    with pytest.raises(InvalidArgumentError, match="kept by the projection"):
        queries_of(settings, PipelineOptions(checkpoints=where, history=where, stages=["metadata"]))


def test_a_pipeline_lacks_what_its_queries_do(settings, tmp_path):
    pipeline = SparkPipeline(Session(), settings, PipelineOptions(checkpoints=str(tmp_path)))
    assert pipeline.lacks() == "its queries are starting"
    pipeline._kept += [SimpleNamespace(lacks=None), SimpleNamespace(lacks="transcription failed")]
    assert pipeline.lacks() == "transcription failed"
    pipeline._kept.append(SimpleNamespace(lacks="projection failed"))
    assert pipeline.lacks() == "transcription failed; projection failed"
    for query in pipeline._kept:
        query.lacks = None
    assert pipeline.lacks() == "its queries are starting"
    pipeline._looked_at = time.monotonic()
    assert pipeline.lacks() is None
    pipeline._executors.lacks = "no executor"
    assert pipeline.lacks() == "no executor"
    pipeline.stop()
    assert pipeline.lacks() == "it is stopping"


class Started(SparkPipeline):
    """Starts queries that are nowhere; `meanwhile` is called with the name of each."""

    @contextmanager
    def _prepared(self):
        with ExitStack() as stack:
            yield stack

    def _lags(self):
        return SimpleNamespace(look=lambda: None, close=lambda: None)

    def start(self, name, *, once=None):
        self.started.append(SimpleNamespace(name=name, stop=self.ended.append, **STATE))
        self.started[-1].stop = lambda: self.ended.append(name)
        self.started[-1].awaitTermination = lambda _: self.meanwhile(name)
        return self.started[-1]

    def names(self):
        return [query.name for query in self.started]


STATE = {
    "isActive": True,
    "lastProgress": None,
    "recentProgress": [],
    "status": {"message": "Waiting for data to arrive", "isTriggerActive": False},
}


@pytest.fixture
def started(settings, tmp_path, monkeypatch):
    for name in ("DriverRelay", "Watching"):
        monkeypatch.setattr(
            f"penstock.spark.jobs.pipeline.{name}",
            lambda *_: nullcontext(SimpleNamespace(wait_until_sent=lambda _: None)),
        )
    made = Started(Session(), settings, PipelineOptions(checkpoints=str(tmp_path)))
    made.started, made.ended = [], []
    return made


def test_it_is_not_ready_while_the_last_query_starts(started):
    said = []

    def let_start(query):
        said.append(started.lacks())
        if len(started.started) == 3:
            said.append("all are started")
            started._stopping.wait = lambda _: (said.append(started.lacks()), started.stop())

    started._let_start = let_start
    started.run()
    assert said == ["its queries are starting"] * 3 + ["all are started", None]


def test_it_is_not_ready_while_spark_does_not_answer(started, monkeypatch):
    """A JVM that is stopped, or out of memory, holds up whoever asks it."""
    now, said = [100.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("penstock.spark.jobs.pipeline.time", clock)
    started._let_start = lambda _: None

    def look(queries):
        for later in (0, 59, 2):
            now[0] += later
            said.append(started.lacks())
        if len(said) == 6:
            started.stop()

    monkeypatch.setattr("penstock.spark.jobs.pipeline.look_at_all", look)
    started.run()
    assert said == [None, None, "Spark has not answered for 61 s"] * 2


def test_one_that_is_stopped_while_it_starts_starts_no_more(started):
    started._let_start = lambda _: started.stop()
    started.run()
    assert started.names() == started.ended == ["metadata"]


def test_a_backfill_says_whether_all_was_done(started):
    started.meanwhile = lambda _: True
    assert started.backfill()
    assert started.names() == ["metadata", "transcription", "projection"]


@pytest.mark.parametrize("done", [True, False])
def test_a_backfill_that_is_stopped_says_so_and_starts_no_more(started, done):
    def meanwhile(_):
        started.stop()
        return done

    started.meanwhile = meanwhile
    assert not started.backfill()
    assert (started.names(), started.ended) == (["metadata"], [] if done else ["metadata"])


def test_a_backfill_that_is_stopped_waits_for_the_batch_that_runs(started, monkeypatch):
    looks = iter([True, True, False])

    class Status:
        def __getitem__(self, name):
            return next(looks) if name == "isTriggerActive" else "Processing new data"

    def meanwhile(_):
        started.started[-1].status = Status()
        started.stop()
        return False

    monkeypatch.setattr("penstock.spark.jobs.kept_query.time.sleep", lambda _: None)
    started.meanwhile = meanwhile
    assert not started.backfill()
    assert started.ended == ["metadata"]
    assert next(looks, None) is None


def test_each_query_that_is_started_has_a_source_of_its_own(settings, tmp_path):
    spark = Session()
    pipeline = SparkPipeline(spark, settings, PipelineOptions(checkpoints=str(tmp_path)))
    workplace = pipeline._workplace = Workplace(b"{}", MEDIA_REFERENCE, "here")
    for name in ("metadata", "projection", "metadata"):
        with pytest.raises(LoadedError):
            pipeline.start(name)
    first, projection, again = spark.registered
    assert projection is EventSource
    # What a task is to do comes with the class, because nothing else of ours reaches it.
    assert [loads(dumps(one)).task for one in (first, again)] == [
        StageTask(workplace, "metadata")
    ] * 2
