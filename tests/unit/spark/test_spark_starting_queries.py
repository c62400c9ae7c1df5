"""Queries of a pipeline as Spark is asked to start them, without Spark."""

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
    assert pipeline.lacks() is None
    pipeline.stop()
    assert pipeline.lacks() == "it is stopping"


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
