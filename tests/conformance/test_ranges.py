"""Range logs show what the port promises; so does the one that other tests stand on."""

import pytest

from penstock.testing.conformance.ranges import RangeHarness, RangeLogConformance
from tests.support.range_logs import FakeHarness
from tests.support.servers import NatsServer


@pytest.fixture(scope="module")
def local_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def secured_server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats"), tls=True, credentials=True) as server:
        yield server


class TestLocal(RangeLogConformance):
    @pytest.fixture
    def harness(self, local_folder):
        return RangeHarness(f"local://{local_folder}")


class TestNatsWithTlsAndCredentials(RangeLogConformance):
    @pytest.fixture
    def harness(self, secured_server):
        return RangeHarness(secured_server.url)


class TestTheFake(RangeLogConformance):
    @pytest.fixture
    def harness(self):
        return FakeHarness()
