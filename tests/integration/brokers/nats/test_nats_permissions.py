"""The ready configuration of the documentation, on a server that enforces it."""

import asyncio
import re
from pathlib import Path

import pytest

from penstock import DeadLetterPolicy, PubSub
from penstock.errors import PenstockError, PermissionDeniedError
from penstock.message import Settlement, Verb
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


async def pulled(broker, name, count):
    """So many deliveries, or those that came within some seconds."""
    found = []
    for _ in range(20):
        found += await broker.pull(name, max_messages=count, max_bytes=10**6, wait=0.5)
        if len(found) >= count:
            break
    return found


@pytest.fixture(scope="module")
def lettered_server(tmp_path_factory):
    users = re.search(r"^authorization \{.*^\}", CONFIG, re.MULTILINE | re.DOTALL)
    assert users is not None
    with NatsServer(tmp_path_factory.mktemp("lettered"), extra=users[0]) as server:
        yield server


async def test_the_roles_can_order_bury_change_and_go_back(lettered_server, caplog):
    caplog.set_level("DEBUG", "penstock")
    policy = DeadLetterPolicy(topic="orders-dead", max_delivery_attempts=2)
    async with client(lettered_server, "provisioner", 1) as provisioner:
        topic = await provisioner.topic("orders").create(message_retention=3600)
        await provisioner.topic("orders-dead").create()
        letters = await provisioner.topic("orders-dead").subscription("letters").create()
        await topic.subscription(
            "billing", message_ordering=True, dead_letter_policy=policy
        ).create()

        async with client(lettered_server, "publisher", 2) as publisher:
            for n in range(3):
                await publisher.topic("orders").publish_message(b"%d" % n, ordering_key="k")

        async with client(lettered_server, "subscriber", 3, "&topics=orders") as subscriber:
            broker = await subscriber.broker()
            [first] = await pulled(broker, "billing", 1)
            await broker.settle("billing", [Settlement(first.ack_id, Verb.RELEASE)])
            for _ in range(2):
                [again] = await pulled(broker, "billing", 1)
                assert again.record.data == b"0"
                await broker.settle("billing", [Settlement(again.ack_id, Verb.NACK)])
            [second] = await pulled(broker, "billing", 1)
            assert second.record.data == b"1"
            await broker.settle("billing", [Settlement(second.ack_id, Verb.ACK)])
        assert "does not allow" not in caplog.text
        status = await letters.describe()
        assert status.backlog == 1

        sub = topic.subscription("billing")
        for _ in range(50):
            if (await sub.describe()).backlog == 1:
                break
            await asyncio.sleep(0.1)
        await sub.create_snapshot("before")
        await sub.update(ack_deadline=20)
        await topic.ensure(message_retention=7200)
        await sub.seek("before")
        assert (await sub.describe()).backlog == 1
        await provisioner.delete_snapshot("before")
        assert await (await provisioner.broker()).admin.list_snapshots() == []
        await sub.delete()


FORBIDDING = """
authorization {{ users: [
  {{ user: all, password: all }}
  {{ user: some, password: some, permissions: {{ publish: {{ deny: [{denied}] }} }} }}
] }}
"""


@pytest.mark.parametrize(
    ("ordered", "forbidden"),
    [
        (False, "$JS.API.CONSUMER.MSG.NEXT.orders.billing"),
        (True, "$JS.API.CONSUMER.MSG.NEXT.orders.billing"),
        (True, "$JS.API.DIRECT.GET.orders"),
    ],
)
async def test_who_may_not_receive_is_told_at_once(tmp_path, ordered, forbidden):
    config = FORBIDDING.format(denied=f'"{forbidden}"')
    with NatsServer(tmp_path, extra=config) as server:
        url = server.url.removeprefix("nats://")
        async with PubSub(f"nats://all:all@{url}") as everybody:
            topic = await everybody.topic("orders").create()
            await topic.subscription("billing", message_ordering=ordered).create()
            for n in range(2):
                await topic.publish_message(b"%d" % n, ordering_key="k")
            if ordered:  # Somebody has a message in hand, so others have to look for its key.
                broker = await everybody.broker()
                assert await broker.pull("billing", max_messages=1, max_bytes=100, wait=10)
            async with PubSub(f"nats://some:some@{url}?timeout=120") as some:
                broker = await some.broker()
                async with asyncio.timeout(60):
                    with pytest.raises(PermissionDeniedError, match=re.escape(forbidden)):
                        await broker.pull("billing", max_messages=1, max_bytes=100, wait=100)
