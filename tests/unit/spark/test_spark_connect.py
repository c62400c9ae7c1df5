"""The address of a Spark Connect server, without Spark."""

import socket

import pytest

from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.spark import session
from penstock.spark.session.connect import check_remote


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def nobody(listening):
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_server_that_listens_is_left_to_pyspark(listening):
    check_remote(f"sc://127.0.0.1:{listening}")
    check_remote(f"sc://127.0.0.1:{listening}/;token=secret;user_id=me")


def test_one_that_is_to_be_started_here_is_left_to_pyspark():
    check_remote("local[2]")


@pytest.mark.parametrize("how", [check_remote, lambda remote: session("test", remote=remote)])
def test_a_server_that_is_not_there_is_told_of_at_once_and_without_its_token(nobody, how):
    with pytest.raises(UnavailableError, match=f"127.0.0.1 port {nobody}") as raised:
        how(f"sc://127.0.0.1:{nobody}/;token=secret")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("remote", ["http://x", "sc://", "sc://:15002", "sc://host:port", "x:1"])
def test_what_is_no_such_address_is_refused_with_what_is(remote):
    with pytest.raises(InvalidArgumentError, match=r"sc://HOST:PORT"):
        check_remote(remote)
