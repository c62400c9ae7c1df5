"""The configuration of the documentation, on a server that enforces it."""

import asyncio
import re
from pathlib import Path

import pytest

from penstock import Bridge
from penstock.dead_letters import Selection
from penstock.errors import PenstockError
from penstock.testing import eventually
from tests.support.servers import NatsServer

pytestmark = pytest.mark.real_time

CONFIG = (Path(__file__).parents[3] / "docs" / "bridge.conf").read_text()


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory):
    users = re.search(r"^authorization \{.*^\}", CONFIG, re.MULTILINE | re.DOTALL)
    assert users is not None
    with NatsServer(tmp_path_factory.mktemp("strict"), extra=users[0]) as server:
        yield server


def bridge(server, user, number, app, other, **options):
    url = (
        f"nats://{user}:change-me-{number}@127.0.0.1:{server.port}"
        f"?inbox_prefix=_INBOX_{user}&timeout=3"
    )
    return Bridge(app, other, url=url, **options)


async def test_each_role_can_do_its_work_and_no_more(strict_server):
    for app, other in (("api", "worker"), ("worker", "api")):
        async with bridge(strict_server, "provisioner", 1, app, other) as provisioner:
            assert await provisioner.problems() == []
            result = await provisioner.publish(event_type="a.b", payload={})
            assert not result.success

    heard = []

    async def handle(event):
        heard.append(event.payload["n"])
        if event.payload["n"] == 3:
            raise TypeError("never")

    restricted = {"auto_provision": False, "backoff": [0.1]}
    api = bridge(strict_server, "api", 2, "api", "worker", **restricted)
    worker = bridge(strict_server, "worker", 3, "worker", "api", **restricted)
    async with api, worker, worker.consumer(handle), api.consumer(handle):
        for n in range(6):
            assert (await api.publish(event_type="a.b", payload={"n": n})).success
        assert (await worker.publish(event_type="a.b", payload={"n": 100})).success
        await eventually(lambda: sorted(heard) == [0, 1, 2, 3, 4, 5, 100], within=60)
        for forbidden in (api.provision, worker.problems):
            with pytest.raises(PenstockError):
                await forbidden()
        health = await api.health_check()
        assert health["healthy"] and health["jetstream"] is None

    # What the worker could not handle was kept, by a user who may do no more than that.
    async with bridge(strict_server, "provisioner", 1, "worker", "api") as provisioner:
        broker = await provisioner.connection.broker()
        status = await broker.admin.describe_topic(provisioner.names.dlq_stream)
        assert status.published == 1
        assert (await broker.admin.describe_subscription("worker-workers")).backlog == 0


async def test_an_app_may_not_speak_for_another(strict_server):
    async with bridge(strict_server, "provisioner", 1, "api", "worker"):
        pass
    liar = bridge(strict_server, "api", 2, "worker", "api", auto_provision=False)
    async with liar:
        result = await liar.publish(event_type="a.b", payload={})
        assert not result.success
        assert "permission" in str(result.error).lower()


async def test_an_operator_reads_and_replays_dead_letters_and_may_not_act_for_an_app(strict_server):
    for app, other in (("api", "worker"), ("worker", "api")):
        async with bridge(strict_server, "provisioner", 1, app, other):
            pass
    heard = []

    async def handle(event):
        heard.append(event.payload["n"])
        if heard == ["given up"]:
            raise TypeError("a bug")

    restricted = {"auto_provision": False}
    api = bridge(strict_server, "api", 2, "api", "worker", **restricted)
    worker = bridge(strict_server, "worker", 3, "worker", "api", **restricted)
    operator = bridge(strict_server, "operator", 4, "worker", "api", **restricted)
    async with api, worker, operator, worker.consumer(handle):
        pubsub = await operator.connection.pubsub()
        letters = pubsub.dead_letters(operator.names.dlq_stream)
        before = await letters.count()
        await api.publish(event_type="a.b", payload={"n": "given up"})
        async with asyncio.timeout(60):
            while await letters.count() == before:
                await asyncio.sleep(0.05)
        newest = [letter.sequence async for letter in letters.read()][-1]
        replay = await letters.replay(Selection(sequences=frozenset([newest])))
        assert (replay.replayed, replay.failed) == (1, {})
        await eventually(lambda: heard == ["given up"] * 2, within=60)
        with pytest.raises(PenstockError):
            await operator.provision()
