"""Creating, deleting, describing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.config import TopicConfig
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.message import Verb
from penstock.testing.conformance.harness import Scene, behaviour


class Administering:
    @behaviour()
    async def test_what_exists_is_listed_and_described(self, scene: Scene) -> None:
        topic, sub = await scene.pair(ack_deadline=42)
        assert topic.name in await scene.pubsub.topics()
        assert sub.name in await scene.pubsub.subscriptions()
        assert (await topic.describe()).subscriptions == (sub.name,)
        config = (await sub.describe()).config
        assert (config.topic, config.ack_deadline) == (topic.name, 42)
        assert await topic.exists() and await sub.exists()

    @behaviour()
    async def test_a_broker_that_can_be_reached_says_how_far_it_is(self, scene: Scene) -> None:
        assert 0 <= await scene.broker.ping() < 5

    @behaviour()
    async def test_creating_twice_fails_and_changes_nothing(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        await topic.publish_message(b"kept")
        with pytest.raises(AlreadyExistsError, match=topic.name):
            await topic.create()
        with pytest.raises(AlreadyExistsError, match=sub.name):
            await sub.create()
        assert [d.record.data for d in await scene.pull(sub)] == [b"kept"]

    @behaviour()
    async def test_what_does_not_exist_cannot_be_used(self, scene: Scene) -> None:
        topic = scene.pubsub.topic(scene.name("missing"))
        sub = topic.subscription(scene.name("missing"))
        for attempt in (topic.delete, topic.describe, sub.create, sub.delete, sub.describe):
            with pytest.raises(NotFoundError, match="missing"):
                await attempt()
        with pytest.raises(NotFoundError):
            await scene.pull(sub)
        assert not await topic.exists() and not await sub.exists()

    @behaviour()
    async def test_another_project_has_names_of_its_own(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        other = await scene.made(scene.pubsub.topic(f"project-two/{topic.name}"))
        across = await scene.made(topic.subscription(f"project-two/{sub.name}"))
        await other.publish_message(b"theirs")
        await topic.publish_message(b"ours")
        assert topic.name in await scene.pubsub.topics()
        assert await other.exists()
        assert set((await topic.describe()).subscriptions) == {sub.name, across.name}
        assert [d.record.data for d in await scene.pull(sub)] == [b"ours"]
        assert [d.record.data for d in await scene.pull(across)] == [b"ours"]

    @behaviour("updates")
    async def test_an_update_changes_what_was_asked_and_keeps_the_backlog(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair(ack_deadline=60)
        await topic.publish_message(b"kept")
        admin, before = scene.broker.admin, (await sub.describe()).config
        await admin.update_topic(TopicConfig(name=topic.name, message_retention=1200))
        await admin.update_subscription(
            replace(before, ack_deadline=scene.second, message_retention=1200)
        )
        assert (await topic.describe()).config.message_retention == 1200
        after = (await sub.describe()).config
        assert (after.ack_deadline, after.message_retention) == (scene.second, 1200)
        [first] = await scene.pull(sub)
        await scene.seconds(1.5)
        [second] = await scene.pull(sub)
        assert first.record == second.record
        assert first.record.data == b"kept"

    @behaviour("updates")
    async def test_an_update_of_what_cannot_change_or_does_not_exist_fails(
        self, scene: Scene
    ) -> None:
        _, sub = await scene.pair()
        admin, config = scene.broker.admin, (await sub.describe()).config
        with pytest.raises(InvalidArgumentError, match=sub.name):
            await admin.update_subscription(replace(config, message_ordering=True))
        if not scene.broker.capabilities.filter_updates:
            with pytest.raises(InvalidArgumentError, match=sub.name):
                await admin.update_subscription(replace(config, filter="attributes:other"))
        with pytest.raises(NotFoundError, match="missing"):
            await admin.update_subscription(replace(config, name=scene.name("missing")))
        with pytest.raises(NotFoundError, match="missing"):
            await admin.update_topic(TopicConfig(name=scene.name("missing")))
        assert (await sub.describe()).config == config

    @behaviour("detaching")
    async def test_a_detached_subscription_drops_what_it_holds_and_gets_nothing_more(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair()
        await topic.publish_message(b"dropped")
        await scene.broker.admin.detach_subscription(sub.name)
        await topic.publish_message(b"missed")
        with pytest.raises(FailedPreconditionError, match=sub.name):
            await scene.pull(sub)
        status = await sub.describe()
        assert status.detached and (status.unsettled is None or status.backlog == 0)
        assert (await topic.describe()).subscriptions == ()

    @behaviour("expiration")
    async def test_a_subscription_nobody_uses_expires(self, scene: Scene) -> None:
        topic = await scene.topic()
        ends = await scene.subscription(topic)
        stays = await scene.subscription(topic)
        for sub in (ends, stays):
            config = (await sub.describe()).config
            await scene.broker.admin.update_subscription(replace(config, expires_after=2))
        for _ in range(40):
            await scene.broker.pull(stays.name, max_messages=1, max_bytes=1000, wait=0.1)
        assert not await ends.exists()
        assert await stays.exists()

    @behaviour("backlog")
    async def test_the_backlog_counts_what_is_not_acked(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        assert (await sub.describe()).oldest_age == 0
        for n in range(5):
            await topic.publish_message(b"%d" % n)
        await scene.seconds(1)
        [first, second] = await scene.pull(sub, 2)
        await scene.settle(sub, first, Verb.ACK)
        await scene.backlog_becomes(sub, 4)
        status = await sub.describe()
        assert status.leased == 1
        assert 0.9 * scene.second <= status.oldest_age <= 10 * scene.second
        await scene.settle(sub, second, Verb.NACK)
        await scene.backlog_becomes(sub, 4)

    @behaviour()
    async def test_a_deleted_subscription_takes_its_backlog_with_it(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        await topic.publish_message(b"lost")
        await sub.delete()
        await sub.create()
        await topic.publish_message(b"new")
        assert [d.record.data for d in await scene.pull(sub)] == [b"new"]

    @behaviour("outlives_topic")
    async def test_a_subscription_outlives_its_topic_until_it_is_drained(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair()
        await topic.publish_message(b"kept")
        await topic.delete()
        [delivery] = await scene.pull(sub)
        await scene.settle(sub, delivery, Verb.NACK)
        [delivery] = await scene.pull(sub)
        await scene.settle(sub, delivery, Verb.ACK)
        with pytest.raises(NotFoundError, match=topic.name):
            await scene.pull(sub)
