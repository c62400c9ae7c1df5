"""`penstock pipeline`: what is wrong is said in one line, and before Spark is started."""

import logging
import signal
import socket
from contextlib import nullcontext

import pytest
from pyspark.errors import AnalysisException
from typer.testing import CliRunner

from penstock.cli.jobs.metrics import Readiness
from penstock.cli.jobs.pipeline import pipeline
from penstock.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from penstock.spark.jobs.checkpoints import holding_checkpoints


@pytest.fixture
def started(monkeypatch):
    """What sessions were asked for; each stands in for Spark."""
    asked = []

    class Session:
        def stop(self):
            asked.append("stopped")

    def session(*arguments, **options):
        asked.append((arguments, options))
        return Session()

    monkeypatch.setattr("penstock.spark.session", session)
    return asked


def invoke(tmp_path, monkeypatch, *arguments, command="run"):
    monkeypatch.chdir(tmp_path)
    where = ("--url", "local://./data", "--database", "sqlite:///jobs.db")
    return CliRunner().invoke(pipeline, [command, *where, *arguments])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--conf", "executor.memory"], "--conf takes a setting of Spark"),
        (["--py-files", "nowhere.py"], "there is no file 'nowhere.py'"),
        (["--stages", "laundry"], "Stages are metadata, transcription, projection"),
        (["--stages", "metadata", "--history", "./history"], "kept by the projection"),
        (["--master", "spark://far:7077"], "local:// is a server of this machine"),
        (
            ["--master", "spark://far:7077", "--url", "nats://far"],
            "SQLite is a file of this machine",
        ),
        (["--url", "memory://"], "local:///DIR"),
        (["--trigger", "inf"], "trigger must be seconds from 0 to 86400"),
        (["--trigger", "1e300"], "trigger must be seconds"),
        (["--checkpoints", ""], "checkpoints must name a folder"),
        (["--history", ""], "history must name a folder"),
        (["--checkpoints", "/dev/null"], "Checkpoints cannot be kept in '/dev/null'"),
    ],
)
def test_what_is_wrong_is_said_before_spark_is_started(started, tmp_path, monkeypatch, wrong, told):
    done = invoke(tmp_path, monkeypatch, *wrong)
    assert isinstance(done.exception, InvalidArgumentError), done.output
    assert told in str(done.exception)
    assert not started


def test_a_database_that_is_not_there_is_said_before_spark_is_started_and_without_its_password(
    started, tmp_path, monkeypatch
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = f"postgresql://somebody:hunter2@127.0.0.1:{port}/jobs"
    done = invoke(tmp_path, monkeypatch, "--database", address)
    assert isinstance(done.exception, UnavailableError), done.output
    assert f"127.0.0.1:{port}/jobs" in str(done.exception)
    assert "hunter2" not in str(done.exception) + done.output
    assert not started


def test_a_database_without_a_folder_is_said_before_spark_is_started(
    started, tmp_path, monkeypatch
):
    done = invoke(tmp_path, monkeypatch, "--database", "sqlite:///nowhere/jobs.db")
    assert isinstance(done.exception, UnavailableError), done.output
    assert "nowhere/jobs.db" in str(done.exception)
    assert not started


@pytest.mark.parametrize("command", ["run", "backfill"])
def test_a_second_driver_of_the_same_checkpoints_is_refused_before_spark_is_started(
    started, tmp_path, monkeypatch, command
):
    with holding_checkpoints(str(tmp_path / "here"), ["transcription"]):
        done = invoke(tmp_path, monkeypatch, "--checkpoints", "here", command=command)
    assert isinstance(done.exception, FailedPreconditionError), done.output
    assert "Another driver runs query 'transcription'" in str(done.exception)
    assert not started


def test_checkpoints_in_the_home_of_a_user_are_looked_for_there(started, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with holding_checkpoints(str(tmp_path / "home" / "here"), ["metadata"]):
        done = invoke(tmp_path, monkeypatch, "--checkpoints=~/here")
    assert "Another driver" in str(done.exception), done.output
    assert not (tmp_path / "~").exists()


def test_what_spark_finds_wrong_is_one_line(started, tmp_path, monkeypatch):
    class Broken:
        def __init__(self, *_):
            raise AnalysisException("No such table\n" + "\tat org.apache.spark.Deep\n" * 50)

    monkeypatch.setattr("penstock.spark.jobs.pipeline.SparkPipeline", Broken)
    done = invoke(tmp_path, monkeypatch)
    assert isinstance(done.exception, FailedPreconditionError)
    assert str(done.exception) == "Spark: No such table"
    assert started[-1] == "stopped"


class Ended:
    """A pipeline with nothing to do."""

    def __init__(self, *_):
        pass

    def run(self):
        pass

    stop = lacks = run


def test_settings_of_spark_reach_the_session(started, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.spark.jobs.pipeline.SparkPipeline", Ended)
    done = invoke(tmp_path, monkeypatch, "--conf", "spark.executor.memory=4g", "--master", "local")
    assert done.exit_code == 0, done.output
    (_, master), options = started[0]
    assert (master, options["config"]["spark.executor.memory"]) == ("local", "4g")


def test_ctrl_c_while_the_session_is_stopped_is_no_traceback(tmp_path, monkeypatch):
    class Session:
        def stop(self):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("penstock.spark.session", lambda *_, **__: Session())
    monkeypatch.setattr("penstock.spark.jobs.pipeline.SparkPipeline", Ended)
    done = invoke(tmp_path, monkeypatch)
    assert done.exit_code == 0, done.output


def test_ctrl_c_while_a_history_is_read_is_not_told_of(started, monkeypatch, caplog):
    def interrupt(*_, **__):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            logging.getLogger().exception("while sending command")  # As py4j does it.
            raise

    monkeypatch.setattr("penstock.spark.jobs.history.check_there", lambda _: None)
    monkeypatch.setattr("penstock.spark.jobs.analytics.open_history", interrupt)
    assert CliRunner().invoke(pipeline, ["report", "history"]).exit_code == 130
    assert started[-1] == "stopped"
    assert not caplog.records


def test_it_is_ready_only_while_no_query_fails(started, tmp_path, monkeypatch):
    seen = []

    class Ailing:
        troubles = "query metadata failed"

        def __init__(self, *_):
            pass

        def lacks(self):
            return self.troubles

        def stop(self):
            pass

        def run(self):
            seen.append(ready.page())
            self.troubles = None
            seen.append(ready.page())

    ready = Readiness()
    monkeypatch.setattr("penstock.spark.jobs.pipeline.SparkPipeline", Ailing)
    monkeypatch.setattr(
        "penstock.cli.jobs.pipeline.serving_metrics_beside", lambda *_: nullcontext(ready)
    )
    assert invoke(tmp_path, monkeypatch).exit_code == 0
    assert seen == [(503, "not ready: query metadata failed\n"), (200, "ready\n")]


@pytest.mark.parametrize(
    ("done", "code", "told"),
    [(True, 0, "All that was there is done."), (False, 1, "Stopped before all was done")],
)
def test_a_backfill_that_was_stopped_does_not_say_that_all_is_done(
    started, tmp_path, monkeypatch, done, code, told
):
    class Backfilled:
        def __init__(self, *_):
            pass

        def stop(self):
            pass

        def backfill(self, _):
            return done

    monkeypatch.setattr("penstock.spark.jobs.pipeline.SparkPipeline", Backfilled)
    ended = invoke(tmp_path, monkeypatch, command="backfill")
    assert (ended.exit_code, told in ended.output) == (code, True)
    assert ("is done" in ended.output) == done
