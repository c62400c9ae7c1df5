"""What the pipeline's command tells Spark about its JVM."""

from dataclasses import fields

import pytest

import penstock.spark
from penstock.cli.jobs.pipeline import _run
from penstock.cli.jobs.spark_options import SparkOptions
from penstock.errors import UnavailableError
from penstock.jobs import load_settings
from penstock.spark.session.quiet import STACK
from penstock.spark.session.starting import defaults

OPTIONS = "spark.driver.extraJavaOptions"


@pytest.fixture
def started_with(monkeypatch, tmp_path):
    """The settings that a session is asked for, by the ways Spark is started."""

    def run(**how):
        asked = {}

        def session(*args, config, **_):
            asked.update(config)
            raise UnavailableError("That is all we want to know")

        monkeypatch.setattr(penstock.spark, "session", session)
        settings = load_settings(
            environ={}, url=f"local://{tmp_path}/broker", database=f"sqlite:///{tmp_path}/jobs.db"
        )
        spark = SparkOptions(**dict.fromkeys(one.name for one in fields(SparkOptions)) | how)
        with pytest.raises(UnavailableError, match="all we want"):
            _run(settings, spark, {"checkpoints": str(tmp_path)}, once=None)
        return asked

    return run


def test_the_pipelines_jvm_compiles_quickly_rather_than_well(started_with):
    assert "-XX:TieredStopAtLevel=1" in started_with(master="local[2]")[OPTIONS]


def test_options_of_a_jvm_that_somebody_gives_are_the_only_ones(started_with):
    assert started_with(master="local[2]", conf=[f"{OPTIONS}=-Dours"])[OPTIONS] == "-Dours"


@pytest.mark.parametrize("given", [[], [f"{OPTIONS}=-Dours"]])
def test_the_stack_that_stopping_a_query_takes_stays_beside_other_options(started_with, given):
    asked = started_with(master="local[2]", conf=given)
    assert STACK in {**defaults("local[2]"), **asked}.values()


def test_a_jvm_that_runs_elsewhere_is_left_alone(started_with):
    assert started_with(remote="sc://127.0.0.1") == {}
