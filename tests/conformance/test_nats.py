"""JetStream runs the same suite: on a server of our own, and on one with TLS and credentials."""

import pytest

from penstock.testing.conformance import BrokerConformance, Harness
from tests.support.servers import NatsServer


@pytest.fixture(scope="module")
def local_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def secured_server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats"), tls=True, credentials=True) as server:
        yield server


class TestLocal(BrokerConformance):
    @pytest.fixture
    def harness(self, local_folder) -> Harness:
        return Harness(f"local://{local_folder}", second=0.5)


class TestNatsWithTlsAndCredentials(BrokerConformance):
    @pytest.fixture
    def harness(self, secured_server) -> Harness:
        return Harness(secured_server.url, second=0.5)
