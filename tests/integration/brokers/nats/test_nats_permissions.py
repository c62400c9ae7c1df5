"""The ready configuration of the documentation, on a server that enforces it."""

import re
from pathlib import Path

import pytest

from penstock import PubSub
from penstock.errors import PenstockError
from tests.support.servers import NatsServer

pytestmark = pytest.mark.real_time

CONFIG = (Path(__file__).parents[4] / "docs" / "nats.conf").read_text()


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory):
    users = re.search(r"^authorization \{.*^\}", CONFIG, re.MULTILINE | re.DOTALL)
    assert users is not None
    with NatsServer(tmp_path_factory.mktemp("strict"), extra=users[0]) as server:
        yield server


def client(server, user, number, more=""):
    return PubSub(
        f"nats://{user}:change-me-{number}@127.0.0.1:{server.port}"
        f"?inbox_prefix=_INBOX_{user}&timeout=2{more}"
    )


async def test_each_role_can_do_its_work_and_no_more(strict_server):
    async with client(strict_server, "provisioner", 1) as provisioner:
        topic = await provisioner.topic("orders").create()
        sub = await topic.subscription("billing").create()
        assert (await sub.describe()).backlog == 0
        for forbidden in (topic.delete, lambda: topic.publish_message(b"x")):
            with pytest.raises(PenstockError):
                await forbidden()

    async with client(strict_server, "publisher", 2) as publisher:
        for n in range(20):
            await publisher.topic("orders").publish_message(b"%d" % n, {"k": "v"})
        await publisher.topic("orders").publish_message(b"inside", subject="orders.eu")
        for forbidden in (
            lambda: publisher.topic("others").publish_message(b"x"),
            publisher.topic("another").create,
            publisher.topics,
        ):
            with pytest.raises(PenstockError):
                await forbidden()

    async with client(strict_server, "subscriber", 3, "&topics=orders") as subscriber:
        received = []
        async for message in subscriber.subscription("billing"):
            received.append(message.data)
            message.ack()
            if len(received) == 21:
                break
        assert sorted(received) == sorted([*(b"%d" % n for n in range(20)), b"inside"])
        with pytest.raises(PenstockError):
            await subscriber.topic("orders").publish_message(b"x")
        with pytest.raises(PenstockError):
            await subscriber.subscription("billing").delete()
