"""What is published is what is received."""

from __future__ import annotations

import pytest

from penstock import Draft
from penstock.errors import NotFoundError
from penstock.testing.conformance.harness import Scene, behaviour


class Publishing:
    @behaviour()
    async def test_a_message_arrives_as_it_was_published(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        received = scene.receive(sub)
        message_id = await topic.publish_message(b"hello", {"stage": "Queued", "ö": "ä"}, "user-1")
        await scene.eventually(lambda: received)
        [message] = received
        assert message.id == message_id
        assert message.data == b"hello"
        assert message.attributes == {"stage": "Queued", "ö": "ä"}
        assert message.ordering_key == "user-1"
        assert message.subject == topic.name
        assert message.delivery_attempt == 1 or not scene.broker.capabilities.delivery_attempts
        assert abs(message.publish_time.timestamp() - message.received) < 60

    @behaviour()
    async def test_an_empty_message_arrives_empty(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        received = scene.receive(sub)
        await topic.publish_message()
        await scene.eventually(lambda: received)
        assert received[0].data == b""
        assert received[0].attributes == {}
        assert received[0].ordering_key is None

    @behaviour()
    async def test_bytes_of_every_value_survive(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        received = scene.receive(sub)
        data = bytes(range(256)) * 4096
        await topic.publish_message(data)
        await scene.eventually(lambda: received)
        assert received[0].data == data

    @behaviour()
    async def test_message_ids_are_unique(self, scene: Scene) -> None:
        topic, _ = await scene.pair()
        drafts = [Draft.of(b"%d" % n) for n in range(100)]
        receipts = await scene.broker.publish(topic.name, drafts)
        assert len({receipt.message_id for receipt in receipts}) == 100  # type: ignore[union-attr]

    @behaviour("replay")
    async def test_sequences_grow(self, scene: Scene) -> None:
        topic, _ = await scene.pair()
        drafts = [Draft.of(b"%d" % n) for n in range(100)]
        receipts = await scene.broker.publish(topic.name, drafts)
        sequences = [receipt.sequence for receipt in receipts]  # type: ignore[union-attr]
        assert sequences == sorted(set(sequences))

    @behaviour()
    async def test_every_subscription_gets_every_message(self, scene: Scene) -> None:
        topic = await scene.topic()
        first = scene.receive(await scene.subscription(topic))
        second = scene.receive(await scene.subscription(topic))
        for n in range(10):
            await topic.publish_message(b"%d" % n)
        await scene.eventually(lambda: len(first) == len(second) == 10)
        assert {m.data for m in first} == {m.data for m in second}

    @behaviour()
    async def test_a_subscription_sees_nothing_from_before_it_was_created(
        self, scene: Scene
    ) -> None:
        topic = await scene.topic()
        await topic.publish_message(b"before")
        received = scene.receive(await scene.subscription(topic))
        await topic.publish_message(b"after")
        await scene.eventually(lambda: received)
        await scene.seconds(0.2)
        assert [m.data for m in received] == [b"after"]

    @behaviour()
    async def test_publishing_to_a_topic_that_does_not_exist_fails(self, scene: Scene) -> None:
        topic = scene.pubsub.topic(scene.name("missing"))
        with pytest.raises(NotFoundError, match="missing") as caught:
            await topic.publish_message(b"x")
        assert caught.value.code == 5

    @behaviour("dedupe")
    async def test_a_message_id_is_stored_once_within_the_window(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        received = scene.receive(sub)
        draft = Draft.of(b"once", message_id="job-1")
        [first] = await scene.broker.publish(topic.name, [draft])
        [second] = await scene.broker.publish(topic.name, [draft])
        await topic.publish_message(b"other", message_id="job-2")
        assert not first.duplicate and second.duplicate  # type: ignore[union-attr]
        assert first.sequence == second.sequence  # type: ignore[union-attr]
        await scene.eventually(lambda: len(received) == 2)
        await scene.seconds(0.2)
        assert sorted(m.id for m in received) == ["job-1", "job-2"]

    @behaviour("dedupe")
    async def test_a_batch_with_a_duplicate_answers_each_draft_for_itself(
        self, scene: Scene
    ) -> None:
        topic, _ = await scene.pair()
        drafts = [Draft.of(b"x", message_id=name) for name in ("aaa", "bbb", "aaa", "ccc")]
        answers = await scene.broker.publish(topic.name, drafts)
        assert [a.duplicate for a in answers] == [False, False, True, False]  # type: ignore[union-attr]

    @behaviour("dedupe")
    async def test_a_message_id_may_return_after_the_window(self, scene: Scene) -> None:
        topic = await scene.topic(duplicate_window=scene.second)
        received = scene.receive(await scene.subscription(topic))
        await topic.publish_message(b"1", message_id="again")
        await scene.seconds(1.5)
        await topic.publish_message(b"2", message_id="again")
        await scene.eventually(lambda: len(received) == 2)
