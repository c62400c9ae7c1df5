"""Changing what exists: what differs is changed and nothing is lost, or the difference is told."""

from __future__ import annotations

import pytest

from penstock import DeadLetterPolicy, RetryPolicy
from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.message import AckResponse, Verb
from penstock.testing.conformance.harness import Scene, behaviour


class Changing:
    @behaviour()
    async def test_what_is_missing_is_made_and_what_is_there_left_as_it_is(
        self, scene: Scene
    ) -> None:
        topic = scene.pubsub.topic(scene.name("topic"))
        sub = topic.subscription(scene.name("sub"), ack_deadline=42)
        scene.clean(topic)
        assert await topic.ensure() is topic
        scene.clean(sub)
        assert await sub.ensure() is sub
        await topic.publish_message(b"kept")
        before = (await topic.describe()).config, (await sub.describe()).config
        assert before[1].ack_deadline == 42
        await topic.ensure()
        await sub.ensure()
        await topic.subscription(sub.name).ensure()  # Nothing is asked of it.
        assert ((await topic.describe()).config, (await sub.describe()).config) == before
        assert [d.record.data for d in await scene.pull(sub)] == [b"kept"]

    @behaviour("updates")
    async def test_what_differs_is_changed_and_the_backlog_kept(self, scene: Scene) -> None:
        topic, sub = await scene.pair(ack_deadline=60)
        await topic.publish_message(b"kept")
        await topic.ensure(message_retention=1200)
        assert (await topic.describe()).config.message_retention == 1200
        await topic.subscription(sub.name, ack_deadline=30, message_retention=1200).ensure()
        config = (await sub.describe()).config
        assert (config.ack_deadline, config.message_retention) == (30, 1200)
        assert [d.record.data for d in await scene.pull(sub)] == [b"kept"]

    @behaviour()
    async def test_what_cannot_be_changed_is_refused_with_the_difference(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair(ack_deadline=60)
        other = await scene.topic()
        before = (await sub.describe()).config
        told = "message_ordering is False, not True"
        with pytest.raises(FailedPreconditionError, match=f"{sub.name}.*{told}"):
            await topic.subscription(sub.name, message_ordering=True, ack_deadline=30).ensure()
        if not scene.broker.capabilities.updates:
            with pytest.raises(FailedPreconditionError, match="ack_deadline is 60"):
                await topic.subscription(sub.name, ack_deadline=30).ensure()
        assert (await sub.describe()).config == before
        assert (await other.describe()).subscriptions == ()

    @behaviour("updates")
    async def test_a_handle_changes_what_it_is_told_and_nothing_else(self, scene: Scene) -> None:
        topic, sub = await scene.pair(ack_deadline=60)
        await topic.update(message_retention=1200)
        assert (await topic.describe()).config.message_retention == 1200
        before = (await sub.describe()).config
        await sub.update(ack_deadline=30)
        after = (await sub.describe()).config
        assert (after.ack_deadline, after.message_retention) == (30, before.message_retention)
        with pytest.raises(InvalidArgumentError, match="message_ordering"):
            await sub.update(message_ordering=True)
        missing = scene.name("missing")
        with pytest.raises(NotFoundError, match=missing):
            await scene.pubsub.topic(missing).update(message_retention=1200)
        with pytest.raises(NotFoundError, match=missing):
            await topic.subscription(missing).update(ack_deadline=30)

    @behaviour("updates", "exactly_once")
    async def test_what_is_on_loan_stays_so_while_its_subscription_is_changed(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair(ack_deadline=60, enable_exactly_once_delivery=True)
        await topic.publish_message(b"x")
        [lent] = await scene.pull(sub)
        await sub.update(ack_deadline=30)
        assert await scene.pull(sub) == []
        assert await scene.settle(sub, lent, Verb.ACK) is AckResponse.SUCCESS
        assert await scene.settle(sub, lent, Verb.ACK) is AckResponse.INVALID

    @behaviour("updates", "exactly_once")
    async def test_what_is_on_loan_stays_so_while_exactly_once_delivery_begins(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair(ack_deadline=60)
        await topic.publish_message(b"x")
        [lent] = await scene.pull(sub)
        await sub.update(enable_exactly_once_delivery=True)
        await topic.publish_message(b"y")
        [after] = await scene.pull(sub)
        for delivery in (lent, after):
            assert await scene.settle(sub, delivery, Verb.ACK) is AckResponse.SUCCESS
            assert await scene.settle(sub, delivery, Verb.ACK) is AckResponse.INVALID
        assert await scene.pull(sub) == []

    @behaviour("updates", "dead_letters", "delivery_attempts")
    async def test_a_dead_letter_policy_can_be_given_and_taken_away(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        dead = await scene.topic()
        letters = await scene.subscription(dead)
        await topic.publish_message(b"x")
        await sub.update(
            dead_letter_policy=DeadLetterPolicy(topic=dead.name, max_delivery_attempts=5)
        )
        for _ in range(5):
            [delivery] = await scene.pull(sub)
            await scene.settle(sub, delivery, Verb.NACK)
        assert await scene.pull(sub) == []
        assert [d.record.data for d in await scene.pull(letters)] == [b"x"]
        await sub.update(dead_letter_policy=None)
        assert (await sub.describe()).config.dead_letter_policy is None
        await topic.publish_message(b"y")
        for _ in range(6):
            [delivery] = await scene.pull(sub)
            await scene.settle(sub, delivery, Verb.NACK)
        assert await scene.pull(letters) == []

    @behaviour("updates", "retry_policy")
    async def test_a_retry_policy_can_be_given(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        await topic.publish_message(b"x")
        backoff = 3 * scene.second
        await sub.update(retry_policy=RetryPolicy(minimum_backoff=backoff, maximum_backoff=backoff))
        [delivery] = await scene.pull(sub)
        await scene.settle(sub, delivery, Verb.NACK)
        assert await scene.pull(sub) == []
        await scene.seconds(2.5)
        assert [d.record.data for d in await scene.pull(sub)] == [b"x"]

    @behaviour("filter_updates")
    async def test_a_new_filter_decides_about_what_waits_and_what_comes(self, scene: Scene) -> None:
        topic = await scene.topic(routed_attributes=["kind"])
        sub = await scene.subscription(topic, filter='attributes.kind != "c"')

        async def publish(*kinds: str) -> None:
            for kind in kinds:
                await topic.publish_message(kind.encode(), {"kind": kind})

        await publish("a", "b")
        await sub.update(filter='attributes.kind = "b" OR attributes.kind = "c"')
        await publish("a", "b", "c")
        received = scene.receive(sub)
        await scene.eventually(lambda: len(received) == 3)
        await scene.seconds(0.3)
        assert sorted(message.data for message in received) == [b"b", b"b", b"c"]
        await sub.update(filter="")
        await publish("a")
        await scene.eventually(lambda: len(received) == 4)
        assert (await sub.describe()).config.filter == ""
