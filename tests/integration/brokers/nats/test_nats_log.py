"""The log of JetStream on an event loop: both ways of reading agree, and neither leaves a trace."""

from contextlib import aclosing

import pytest

from penstock import Draft, PubSub
from penstock.testing import eventually
from tests.support.nats_scenes import api
from tests.support.servers import NatsServer

pytestmark = pytest.mark.real_time
WAYS = {"directly": 10**9, "through a consumer": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture(params=WAYS)
def either_way(request, monkeypatch):
    worth_a_consumer(monkeypatch, WAYS[request.param])


def worth_a_consumer(monkeypatch, least):
    monkeypatch.setattr("penstock.brokers.nats.log.WORTH_A_CONSUMER", least)


def consumers(url, topic):
    return api(url, f"STREAM.INFO.{topic}")["state"]["consumer_count"]


async def filled(pubsub, topic, count, **options):
    await pubsub.topic(topic).create(**options)
    broker = await pubsub.broker()
    await broker.publish(topic, [Draft(b"%d" % n, message_id=f"{topic}/{n}") for n in range(count)])
    return broker.log


async def read(log, topic, first, last):
    return [record async for batch in log.read(topic, first, last) for record in batch]


async def test_both_ways_of_reading_agree_on_every_record(server, monkeypatch):
    monkeypatch.setattr("penstock.brokers.nats.aio.passing._BATCH_BYTES", 5_000)
    async with PubSub(server.url) as pubsub:
        log = await filled(pubsub, "kinds", 20)
        topic = pubsub.topic("kinds")
        await topic.publish_message(b"", {"a b": "é"}, "ann", subject="kinds.deep")
        await topic.publish_message(bytes(20_000))
        await (await pubsub.broker()).publish("kinds", [Draft(b"%d" % n) for n in range(2_500)])
        for gone in (7, 12):
            api(server.url, "STREAM.MSG.DELETE.kinds", {"seq": gone})
        found = []
        for least in WAYS.values():
            worth_a_consumer(monkeypatch, least)
            found.append(await read(log, "kinds", 5, 2_500))
        assert found[0] == found[1]
        assert [record.sequence for record in found[0]] == [
            n for n in range(5, 2_501) if n not in (7, 12)
        ]
    assert consumers(server.url, "kinds") == 0


@pytest.mark.usefixtures("either_way")
async def test_a_range_beyond_the_end_is_as_much_as_there_is(server):
    async with PubSub(server.url) as pubsub:
        log = await filled(pubsub, "short", 5)
        assert len(await read(log, "short", 3, 10**6)) == 3
        assert await read(log, "short", 6, 10**6) == []
        await pubsub.topic("short").delete()


async def test_a_reader_that_leaves_half_way_leaves_no_consumer(server, monkeypatch):
    worth_a_consumer(monkeypatch, 1)
    monkeypatch.setattr("penstock.brokers.nats.aio.passing._BATCH", 100)
    async with PubSub(server.url) as pubsub:
        log = await filled(pubsub, "left", 1_000)
        async with aclosing(log.read("left", 1, 1_000)) as batches:
            async for batch in batches:
                assert len(batch) == 100
                break
        await eventually(lambda: consumers(server.url, "left") == 0)
        assert len(await read(log, "left", 1, 1_000)) == 1_000


async def test_what_a_consumer_that_is_gone_has_not_sent_is_read_directly(server, monkeypatch):
    """Its server went away in between, for instance."""
    worth_a_consumer(monkeypatch, 1)
    monkeypatch.setattr("penstock.brokers.nats.aio.passing._BATCH", 100)
    async with PubSub(server.url) as pubsub:
        log = await filled(pubsub, "ended", 1_000)
        found = []
        async with aclosing(log.read("ended", 1, 1_000)) as batches:
            async for batch in batches:
                found += batch
                if len(found) == 100:
                    [consumer] = api(server.url, "CONSUMER.NAMES.ended")["consumers"]
                    api(server.url, f"CONSUMER.DELETE.ended.{consumer}")
        assert [record.sequence for record in found] == [*range(1, 1_001)]


async def test_a_work_queue_is_read_without_a_consumer_of_ours(server, monkeypatch):
    worth_a_consumer(monkeypatch, 1)
    async with PubSub(server.url) as pubsub:
        log = await filled(pubsub, "queue", 50, work_queue=True)
        assert len(await read(log, "queue", 1, 50)) == 50
        assert api(server.url, "STREAM.INFO.queue")["state"]["messages"] == 50


async def test_a_user_who_may_make_no_consumers_reads_directly(tmp_path, monkeypatch):
    worth_a_consumer(monkeypatch, 1)
    denied = """
    authorization { users = [
      { user: admin, password: admin }
      { user: reader, password: reader,
        permissions: { publish: { deny: "$JS.API.CONSUMER.>" } } }
    ] }
    """
    with NatsServer(tmp_path, extra=denied) as server:
        async with PubSub(server.url.replace("nats://", "nats://admin:admin@")) as admin:
            await filled(admin, "orders", 10)
        async with PubSub(server.url.replace("nats://", "nats://reader:reader@")) as reader:
            log = (await reader.broker()).log
            assert len(await read(log, "orders", 1, 10)) == 10
