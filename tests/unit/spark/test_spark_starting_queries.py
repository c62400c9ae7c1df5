"""Queries of a pipeline as Spark is asked to start them, without Spark."""

from types import SimpleNamespace

import pytest

from penstock.jobs import load_settings
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.jobs.pipeline import PipelineOptions, SparkPipeline


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


def test_each_query_that_is_started_has_a_source_of_its_own(tmp_path):
    settings = load_settings(
        environ={}, url="nats://127.0.0.1", database=f"sqlite:///{tmp_path}/jobs.db"
    )
    spark = Session()
    pipeline = SparkPipeline(spark, settings, PipelineOptions(checkpoints=str(tmp_path)))
    pipeline._workplace = object()
    for count, name in enumerate(("metadata", "projection", "metadata"), 1):
        with pytest.raises(LoadedError):
            pipeline.start(name)
        assert spark.registered == [PenstockDataSource] * count
