"""The address of Spark's master, without Spark."""

import socket

import pytest

from penstock.errors import InvalidArgumentError, UnavailableError
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
        *("local", "local[*]", "local[2]", "local[ 2 ]", "local[2,3]", "local[*, 4]"),
        *("local-cluster[2,1,1024]", "local-cluster[ 2 , 1 , 1024 ]", "yarn"),
        *("k8s://https://127.0.0.1:6443", "k8s://127.0.0.1:6443", "own://anything"),
    ],
)
def test_what_spark_knows_and_what_it_may_have_been_taught_is_left_to_it(master):
    check_master(master)


@pytest.mark.parametrize("how", [check_master, lambda master: session("test", master)])
@pytest.mark.parametrize(
    "master",
    ["nonsense", "local[2", "local[0]", "local[two]", "localhost:7077", "local-cluster[2]"],
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


def test_one_of_several_masters_is_enough(listening, nobody):
    check_master(f"spark://127.0.0.1:{nobody},127.0.0.1:{listening}")
