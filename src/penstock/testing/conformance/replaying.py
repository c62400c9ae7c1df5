"""Going back: seek, snapshots, and reading the log by sequence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from penstock import Draft, PreciseTime, Topic
from penstock.broker import Log
from penstock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from penstock.message import AckResponse, Delivery, Record, Verb
from penstock.testing.conformance.harness import Scene, behaviour


async def _publish(topic: Topic, *names: str) -> None:
    for name in names:
        await topic.publish_message(name.encode(), {"name": name})


async def _read(log: Log, topic: Topic, first: int, last: int, filter: str = "") -> list[Record]:
    records: list[Record] = []
    async for batch in log.read(topic.name, first, last, filter):
        records += batch
    return records


def _data(records: Sequence[Record]) -> list[str]:
    return [record.data.decode() for record in records]


class Replaying:
    @behaviour("seek")
    async def test_seeking_back_delivers_acked_messages_again(self, scene: Scene) -> None:
        topic = await scene.topic(message_retention=600)
        sub = await scene.subscription(topic)
        received = scene.receive(sub)
        await _publish(topic, "one", "two")
        await scene.eventually(lambda: len(received) == 2)
        await scene.seconds(0.1)
        await _publish(topic, "three")
        await scene.eventually(lambda: len(received) == 3)
        await scene.seconds(0.1)
        await sub.seek(received[2].publish_time)
        await scene.eventually(lambda: len(received) == 4)
        await sub.seek(received[0].publish_time - timedelta(seconds=1))
        await scene.eventually(lambda: len(received) == 7)
        await scene.seconds(0.2)
        assert received[3].data == b"three"
        assert sorted(m.data for m in received[4:]) == [b"one", b"three", b"two"]

    @behaviour("seek", "backlog")
    async def test_seeking_forward_acks_what_is_before(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        await _publish(topic, "one", "two")
        await scene.seconds(0.1)
        await _publish(topic, "three")
        [third] = [d for d in await scene.pull(sub) if d.record.data == b"three"]
        moment = third.record.publish_time_ns
        await sub.seek(PreciseTime.from_ns(moment))
        await scene.backlog_becomes(sub, 1)

    @behaviour("seek")
    async def test_a_late_ack_does_not_consume_the_replay(self, scene: Scene) -> None:
        topic = await scene.topic(message_retention=600)
        sub = await scene.subscription(topic)
        await _publish(topic, "one")
        [before] = await scene.pull(sub)
        await sub.seek(PreciseTime.from_ns(before.record.publish_time_ns))
        await scene.settle(sub, before, Verb.ACK)
        [after] = await scene.pull(sub)
        assert after.record == before.record
        assert await scene.settle(sub, after, Verb.ACK) is AckResponse.SUCCESS
        assert await scene.pull(sub) == []

    @behaviour("snapshots")
    async def test_a_snapshot_brings_back_what_was_unacked_and_all_that_followed(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair()
        await _publish(topic, "acked", "unacked")
        # Nothing is said about the order of messages without a key.
        [first, second] = sorted(await scene.pull(sub, 2), key=lambda d: d.record.data)
        await scene.settle(sub, first, Verb.ACK)
        snapshot = scene.name("snapshot")
        await sub.create_snapshot(snapshot)
        admin = scene.broker.admin
        assert snapshot in await admin.list_snapshots()
        assert await admin.list_snapshots(topic.name) == [snapshot]
        status = await admin.describe_snapshot(snapshot)
        assert status.topic == topic.name and not status.topic_deleted
        # Seven days after the oldest message in it, to the resolution of the broker's clock.
        oldest = PreciseTime.from_ns(second.record.publish_time_ns)
        assert abs(status.expires - oldest - timedelta(days=7)) < timedelta(minutes=1)
        await scene.settle(sub, second, Verb.ACK)
        await _publish(topic, "later")
        for delivery in await scene.pull(sub):
            await scene.settle(sub, delivery, Verb.ACK)
        await sub.seek(snapshot)
        again: list[Delivery] = []
        while pulled := await scene.pull(sub):
            again += pulled
        assert sorted(d.record.data for d in again) == [b"later", b"unacked"]
        await scene.pubsub.delete_snapshot(snapshot)
        with pytest.raises(NotFoundError, match=snapshot):
            await sub.seek(snapshot)

    @behaviour("snapshots")
    async def test_a_snapshot_is_for_every_subscription_of_its_topic_and_no_other(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair()
        sibling = await scene.subscription(topic)
        _, stranger = await scene.pair()
        await _publish(topic, "one")
        snapshot = scene.name("snapshot")
        await sub.create_snapshot(snapshot)
        with pytest.raises(AlreadyExistsError, match=snapshot):
            await sibling.create_snapshot(snapshot)
        [delivery] = await scene.pull(sibling)
        await scene.settle(sibling, delivery, Verb.ACK)
        await sibling.seek(snapshot)
        assert [d.record.data for d in await scene.pull(sibling)] == [b"one"]
        with pytest.raises(InvalidArgumentError):
            await stranger.seek(snapshot)
        await scene.pubsub.delete_snapshot(snapshot)

    @behaviour("replay")
    async def test_the_log_reads_any_range_in_order(self, scene: Scene) -> None:
        log = scene.broker.log
        assert log is not None
        topic = await scene.topic(message_retention=600)
        drafts = [Draft.of(b"%d" % n) for n in range(2500)]
        await scene.broker.publish(topic.name, drafts)
        extent = await log.extent(topic.name)
        assert extent.last - extent.first + 1 == 2500
        everything = await _read(log, topic, extent.first, extent.last)
        assert _data(everything) == [str(n) for n in range(2500)]
        assert [r.sequence for r in everything] == list(range(extent.first, extent.last + 1))
        middle = await _read(log, topic, extent.first + 990, extent.first + 1009)
        assert _data(middle) == [str(n) for n in range(990, 1010)]
        assert await _read(log, topic, extent.last + 1, extent.last + 10) == []

    @behaviour("replay")
    async def test_the_log_holds_acked_messages_and_filters(self, scene: Scene) -> None:
        log = scene.broker.log
        assert log is not None
        topic = await scene.topic(message_retention=600)
        received = scene.receive(await scene.subscription(topic))
        await _publish(topic, "one", "two", "three")
        await scene.eventually(lambda: len(received) == 3)
        extent = await log.extent(topic.name)
        found = await _read(
            log, topic, extent.first, extent.last, 'hasPrefix(attributes.name, "t")'
        )
        assert _data(found) == ["two", "three"]

    @behaviour("replay")
    async def test_reading_a_topic_that_does_not_exist_fails(self, scene: Scene) -> None:
        log = scene.broker.log
        assert log is not None
        with pytest.raises(NotFoundError):
            await log.extent(scene.name("missing"))
