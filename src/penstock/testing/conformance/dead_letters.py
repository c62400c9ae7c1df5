"""A message that fails too often moves to where it can be looked at."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import DeadLetterPolicy, Message, Subscription, Topic
from penstock.errors import NotFoundError
from penstock.testing.conformance.harness import Scene, behaviour


async def _with_dead_letters(
    scene: Scene, attempts: int = 5, **options: Any
) -> tuple[Topic, Subscription, Subscription]:
    topic, dead = await scene.topic(), await scene.topic()
    policy = DeadLetterPolicy(topic=dead.name, max_delivery_attempts=_attempts(scene, attempts))
    sub = await scene.subscription(
        topic,
        dead_letter_policy=policy,
        **options,
    )
    return topic, sub, await scene.subscription(dead)


def _attempts(scene: Scene, wanted: int) -> int:
    """As few as wanted, or as the broker takes."""
    return max(wanted, scene.broker.capabilities.least_delivery_attempts)


class DeadLetters:
    @behaviour("dead_letters")
    async def test_after_the_last_attempt_a_message_moves_with_its_history(
        self, scene: Scene
    ) -> None:
        topic, sub, graveyard = await _with_dead_letters(scene)
        tries = scene.receive(sub, lambda m: m.nack())
        dead = scene.receive(graveyard)
        await topic.publish_message(b"poison", {"kind": "test"}, "user-1")
        await scene.eventually(lambda: dead)
        await scene.seconds(0.2)
        assert [m.delivery_attempt for m in tries] == [1, 2, 3, 4, 5]
        [letter] = dead
        assert letter.data == b"poison"
        assert letter.ordering_key == "user-1"
        assert letter.attributes["kind"] == "test"
        source = "CloudPubSubDeadLetterSource"
        assert letter.attributes[f"{source}DeliveryCount"] == "5"
        assert letter.attributes[f"{source}Subscription"] == sub.name
        published = letter.attributes[f"{source}TopicPublishTime"]
        assert published == tries[0].publish_time.isoformat()

    @behaviour("dead_letters", "backlog")
    async def test_what_moved_is_gone_from_the_subscription(self, scene: Scene) -> None:
        topic, sub, graveyard = await _with_dead_letters(scene, attempts=1)
        scene.receive(sub, lambda m: m.nack())
        dead = scene.receive(graveyard)
        await topic.publish_message(b"poison")
        await scene.eventually(lambda: dead)
        await scene.backlog_becomes(sub, 0)

    @behaviour("dead_letters")
    async def test_missed_deadlines_count_as_attempts(self, scene: Scene) -> None:
        topic, sub, graveyard = await _with_dead_letters(
            scene, attempts=2, ack_deadline=scene.second
        )
        tries = scene.receive(sub, lambda _: None)
        dead = scene.receive(graveyard)
        await topic.publish_message(b"slow")
        await scene.eventually(lambda: dead, within=20)
        assert len(tries) == _attempts(scene, 2)

    @behaviour("dead_letters")
    async def test_a_rejected_message_moves_at_once(self, scene: Scene) -> None:
        topic, sub, graveyard = await _with_dead_letters(scene)
        tries = scene.receive(sub, lambda m: m.reject())
        dead = scene.receive(graveyard)
        await topic.publish_message(b"malformed")
        await scene.eventually(lambda: dead)
        await scene.seconds(0.2)
        assert len(tries) == 1

    @behaviour("dead_letters", "ordering")
    async def test_the_key_goes_on_after_a_message_has_moved(self, scene: Scene) -> None:
        topic, sub, graveyard = await _with_dead_letters(scene, attempts=2, message_ordering=True)

        def handle(message: Message) -> None:
            if message.data == b"poison":
                message.nack()
            else:
                message.ack()

        received = scene.receive(sub, handle)
        dead = scene.receive(graveyard)
        await topic.publish_message(b"poison", ordering_key="key")
        await topic.publish_message(b"fine", ordering_key="key")
        await scene.eventually(lambda: len(received) == 3 and dead)
        assert [m.data for m in received] == [b"poison", b"poison", b"fine"]

    @behaviour("dead_letters")
    async def test_a_policy_needs_a_topic_that_exists(self, scene: Scene) -> None:
        topic = await scene.topic()
        policy = DeadLetterPolicy(topic=scene.name("missing"))
        sub = topic.subscription(scene.name("sub"), dead_letter_policy=policy)
        with pytest.raises(NotFoundError, match="missing"):
            await sub.create()
        assert not await sub.exists()
