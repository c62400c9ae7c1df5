"""The connection itself: a server that talks nonsense, and calls that are cancelled."""

import pytest

from penstock import PubSub
from penstock.errors import PenstockError
from penstock.testing.faults import faulty_proxy
from tests.support.brokers import publish_when_connected
from tests.support.servers import NatsServer

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.mark.parametrize(
    "nonsense", [b"MSG x 1 -5\r\n", b"HMSG x 1 9 -9\r\n", bytes(100_000), b"HTTP/1.1 400\r\n"]
)
async def test_a_server_that_talks_nonsense_is_left_and_asked_again(server, nonsense):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout=1") as pubsub,
    ):
        topic = pubsub.topic("nonsense")
        if not await topic.exists():
            await topic.create()
        said = [nonsense]
        proxy.replies = lambda data: said.pop() if said else data
        with pytest.raises(PenstockError) as caught:
            await topic.publish_message(b"x")
        assert caught.value.retryable
        await publish_when_connected(topic)
