"""A real NATS server for all of these tests, and databases of both kinds."""

import itertools

import pytest

from tests.support.servers import NatsServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("bridge")) as server:
        yield server


@pytest.fixture
def pair() -> dict[str, str]:
    """Two apps and a stream that no other test has."""
    number = next(_numbers)
    return {
        "app_name": f"api{number}",
        "destination_app": f"worker{number}",
        "stream_name": f"bridge{number}",
    }


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/app.db"
    return request.getfixturevalue("postgres").new_database()
