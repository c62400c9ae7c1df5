"""The address of Spark's master, without Spark."""

import socket

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from penstock.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from penstock.spark import session
from penstock.spark.session.master import check_master


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def nobody(listening):
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[*]", "local[2]", "local[2,3]", "local[* , 4]"),
        *("local-cluster[2,1,1024]", "local-cluster[ 2 , 1 , 1024 ]", "yarn"),
        *("k8s://https://127.0.0.1:6443", "k8s://127.0.0.1:6443", "spark-own://anything"),
    ],
)
def test_what_spark_knows_and_what_it_may_have_been_taught_is_left_to_it(master):
    check_master(master)


@pytest.mark.parametrize("how", [check_master, lambda master: session("test", master)])
@pytest.mark.parametrize(
    "master",
    [
        *("nonsense", "local[2", "local[0]", "local[two]", "local[ 2 ]", "local-cluster[2]"),
        *("localhost:7077", "own://anything", "nats://127.0.0.1"),
    ],
)
def test_what_is_no_master_is_refused_with_what_is(master, how):
    with pytest.raises(InvalidArgumentError, match=r"spark://HOST:PORT") as raised:
        how(master)
    assert repr(master) in str(raised.value)


@pytest.mark.parametrize("place", ["", "host", "host:port", "host:99999", ":7077", "host:7077,"])
def test_a_standalone_master_needs_a_host_and_a_port(place):
    with pytest.raises(InvalidArgumentError):
        check_master(f"spark://{place}")


@pytest.mark.parametrize("how", [check_master, lambda master: session("test", master)])
def test_a_master_that_is_not_there_is_told_of_at_once(nobody, how):
    with pytest.raises(UnavailableError, match=f"spark://127.0.0.1:{nobody} .*is it running"):
        how(f"spark://127.0.0.1:{nobody}")


@pytest.mark.parametrize("host", ["spark..example", "a" * 70])
def test_a_host_that_cannot_have_that_name_is_told_of_at_once(host):
    with pytest.raises(UnavailableError, match=r"spark://.*no name of a host.*is it running"):
        check_master(f"spark://{host}:7077")


def test_one_of_several_masters_is_enough(listening, nobody):
    check_master(f"spark://127.0.0.1:{nobody},127.0.0.1:{listening}")


@pytest.mark.parametrize(
    "error",
    [PySparkRuntimeError("The JVM is gone\n\tat Deep"), Py4JError("The JVM is gone\n\tat Deep")],
)
def test_a_spark_that_does_not_start_is_one_line(monkeypatch, error):
    def fail(_):
        raise error

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", fail)
    with pytest.raises(FailedPreconditionError) as raised:
        session("test", "local[2]")
    told = str(raised.value)
    assert "local[2] (The JVM is gone)" in told
    assert "\n" not in told
