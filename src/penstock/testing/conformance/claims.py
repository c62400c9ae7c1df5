"""What a broker claims it does; what it does not claim is refused, and the refusal says so.

Families of their own show most claims (filters, dead letters, ordering…); the rest are here. Where
a claim that is missing refuses nothing, the client does it instead, or the answer is honest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock import (
    DeadLetterPolicy,
    Draft,
    Expect,
    ManagedPublisher,
    Message,
    PreciseTime,
    PushDelivery,
    RetryPolicy,
)
from penstock.capabilities import (
    detach_subscription,
    release_counts_of,
    update_subscription,
    update_topic,
)
from penstock.config import TopicConfig
from penstock.errors import FailedPreconditionError, NotFoundError, UnimplementedError
from penstock.message import Delivery, PublishFault, Receipt, Record, Verb
from penstock.testing.conformance.harness import Scene, behaviour


async def _refused(scene: Scene, capability: str, ask: Callable[[], Awaitable[Any]]) -> None:
    """It raises, and names the broker and what is missing."""
    with pytest.raises(UnimplementedError, match=f"'{capability}'.*{scene.broker.name}"):
        await ask()


async def _option_refused(scene: Scene, capability: str, **options: Any) -> None:
    topic = await scene.topic()
    sub = topic.subscription(scene.name("refused"), **options)
    await _refused(scene, capability, sub.create)
    assert not await sub.exists()


async def _draft_refused(scene: Scene, capability: str, **wish: Any) -> None:
    topic, sub = await scene.pair()
    async with ManagedPublisher(scene.pubsub) as publisher:
        asking = await publisher.publish_async(topic.name, b"asks", **wish)
        plain = await publisher.publish_async(topic.name, b"plain")
        await plain.ack
        await _refused(scene, capability, lambda: asking.ack)
    assert [d.record.data for d in await scene.pull(sub)] == [b"plain"]


class Claims:
    # Claimed.

    @behaviour("durable")
    async def test_what_was_acknowledged_is_there_when_the_broker_is_opened_again(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair(ack_deadline=2 * scene.second)
        for name in (b"acked", b"lent"):
            await topic.publish_message(name)
        held: list[Delivery] = []
        while len(held) < 2:
            held += await scene.pull(sub)
        [acked] = [delivery for delivery in held if delivery.record.data == b"acked"]
        await scene.settle(sub, acked, Verb.ACK)
        message_id = await topic.publish_message(b"waiting", {"key": "value"}, "order")
        await scene.broker.ping()
        await scene.broker.aclose()
        found: dict[bytes, Record] = {}
        async with scene.another() as again:
            for _ in range(10):
                for delivery in await again.pull(
                    sub.name, max_messages=10, max_bytes=10**6, wait=scene.second
                ):
                    found[delivery.record.data] = delivery.record
        assert found.keys() == {b"lent", b"waiting"}
        waiting = found[b"waiting"]
        assert waiting.message_id == message_id
        assert (waiting.attributes, waiting.ordering_key) == ({"key": "value"}, "order")

    @behaviour("sets_deadlines")
    async def test_an_extension_lasts_as_long_as_asked(self, scene: Scene) -> None:
        topic, sub = await scene.pair(ack_deadline=scene.second)
        await topic.publish_message(b"x")
        [delivery] = await scene.pull(sub)
        await scene.settle(sub, delivery, Verb.EXTEND, 5 * scene.second)
        await scene.seconds(2.5)
        assert await scene.pull(sub) == []
        await scene.seconds(2)
        [again] = await scene.pull(sub)
        assert again.record == delivery.record

    @behaviour("counts_releases")
    async def test_what_was_released_is_told_to_whoever_counts_attempts(self, scene: Scene) -> None:
        counts = release_counts_of(scene.broker)
        assert counts is not None
        topic, sub = await scene.pair()
        await counts.note_releases(sub.name)
        for name in (b"unseen", b"seen"):
            await topic.publish_message(name)
        for attempt in (1, 2, 3):
            held: list[Delivery] = []
            while len(held) < 2:
                held += await scene.pull(sub)
            for delivery in held:
                unseen = delivery.record.data == b"unseen"
                assert delivery.delivery_attempt == attempt
                seen = await counts.attempt(sub.name, delivery.ack_id)
                assert seen == (1 if unseen else attempt)
                await scene.settle(sub, delivery, Verb.RELEASE if unseen else Verb.NACK)
        async with scene.another() as other:
            also = release_counts_of(other)
            assert also is not None
            for delivery in held:
                unseen = delivery.record.data == b"unseen"
                assert await also.attempt(sub.name, delivery.ack_id) == (1 if unseen else 3)

    @behaviour("expectations")
    async def test_a_draft_is_stored_only_if_the_topic_is_as_it_expects(self, scene: Scene) -> None:
        topic, _ = await scene.pair()

        async def publish(*expects: Expect | None) -> list[Receipt | PublishFault]:
            drafts = [Draft.of(b"x", expect=expect) for expect in expects]
            return list(await scene.broker.publish(topic.name, drafts))

        [first] = await publish(Expect(topic=topic.name, last_sequence=0))
        assert isinstance(first, Receipt)
        wrong, plain = await publish(Expect(last_sequence=first.sequence + 7), None)
        assert isinstance(wrong, PublishFault) and isinstance(plain, Receipt)
        assert isinstance(wrong.error, FailedPreconditionError)
        [last] = await publish(Expect(last_subject_sequence=plain.sequence))
        assert isinstance(last, Receipt)

    @behaviour("ttl")
    async def test_a_message_is_forgotten_when_its_time_is_up(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        drafts = [Draft.of(b"short", ttl=1), Draft.of(b"long", ttl=600), Draft.of(b"for ever")]
        await scene.broker.publish(topic.name, drafts)
        # A time to live is whole seconds, whatever the harness calls a second.
        await asyncio.sleep(3.5)
        assert sorted(d.record.data for d in await scene.pull(sub)) == [b"for ever", b"long"]

    @behaviour("replicas")
    async def test_there_are_as_many_replicas_as_asked_for_or_none(self, scene: Scene) -> None:
        topic = scene.pubsub.topic(scene.name("copies"))
        try:
            await topic.create(replicas=2)
        except FailedPreconditionError:  # Fewer servers than that.
            assert not await topic.exists()
        else:
            assert (await topic.describe()).config.replicas == 2

    # Not claimed, and refused.

    @behaviour(lacks="replicas")
    async def test_replicas_are_refused(self, scene: Scene) -> None:
        await _option_refused(scene, "replicas", replicas=2)
        topic = scene.pubsub.topic(scene.name("copies"))
        await _refused(scene, "replicas", lambda: topic.create(replicas=2))
        assert not await topic.exists()

    @behaviour(lacks="filters")
    async def test_a_filter_is_refused(self, scene: Scene) -> None:
        await _option_refused(scene, "filters", filter="attributes:wanted")

    @behaviour(lacks="dead_letters")
    async def test_a_dead_letter_policy_is_refused(self, scene: Scene) -> None:
        policy = DeadLetterPolicy(topic=(await scene.topic()).name)
        await _option_refused(scene, "dead_letters", dead_letter_policy=policy)

    @behaviour(lacks="retry_policy")
    async def test_a_retry_policy_is_refused(self, scene: Scene) -> None:
        await _option_refused(scene, "retry_policy", retry_policy=RetryPolicy())

    @behaviour(lacks="exactly_once")
    async def test_exactly_once_delivery_is_refused(self, scene: Scene) -> None:
        await _option_refused(scene, "exactly_once", enable_exactly_once_delivery=True)

    @behaviour(lacks="push")
    async def test_being_pushed_to_is_refused(self, scene: Scene) -> None:
        await _option_refused(scene, "push", push=PushDelivery(subject="deliver.here"))

    @behaviour(lacks="expectations")
    async def test_an_expectation_is_refused_and_nothing_stored(self, scene: Scene) -> None:
        await _draft_refused(scene, "expectations", expect=Expect(last_sequence=0))

    @behaviour(lacks="ttl")
    async def test_a_time_to_live_is_refused_and_nothing_stored(self, scene: Scene) -> None:
        await _draft_refused(scene, "ttl", ttl=60)

    @behaviour(lacks="dedupe")
    async def test_a_duplicate_window_is_refused(self, scene: Scene) -> None:
        topic = scene.pubsub.topic(scene.name("refused"))
        await _refused(scene, "dedupe", lambda: topic.create(duplicate_window=5))
        assert not await topic.exists()

    @behaviour(lacks="delayed_nack")
    async def test_a_delay_of_a_nack_is_refused_and_the_message_still_ours(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair()
        refusals: list[UnimplementedError] = []

        def handle(message: Message) -> None:
            try:
                if len(received) == 1:
                    message.nack(5)
            except UnimplementedError as error:
                refusals.append(error)
            message.ack()

        received = scene.receive(sub, handle)
        await topic.publish_message(b"x")
        await scene.eventually(lambda: received)
        await scene.seconds(0.3)
        assert len(received) == len(refusals) == 1
        assert "'delayed_nack'" in str(refusals[0]) and scene.broker.name in str(refusals[0])

    @behaviour(lacks="seek")
    async def test_seeking_is_refused_and_so_is_keeping_for_it(self, scene: Scene) -> None:
        _, sub = await scene.pair()
        await _refused(scene, "seek", lambda: sub.seek(PreciseTime.from_ns(0)))
        await _option_refused(scene, "seek", retain_acked_messages=True)
        if not scene.broker.capabilities.replay:
            topic = scene.pubsub.topic(scene.name("refused"))
            await _refused(scene, "seek", lambda: topic.create(message_retention=60))

    @behaviour(lacks="snapshots")
    async def test_snapshots_are_refused(self, scene: Scene) -> None:
        _, sub = await scene.pair()
        name = scene.name("snapshot")
        await _refused(scene, "snapshots", lambda: sub.create_snapshot(name))
        await _refused(scene, "snapshots", lambda: sub.seek(name))
        await _refused(scene, "snapshots", lambda: scene.pubsub.delete_snapshot(name))

    @behaviour(lacks="subjects")
    async def test_subjects_of_any_name_are_refused(self, scene: Scene) -> None:
        topic = scene.pubsub.topic(scene.name("refused"))
        await _refused(scene, "subjects", lambda: topic.create(subjects=["other.>"]))
        assert not await topic.exists()
        await _option_refused(scene, "subjects", subjects=("other.in",))

    @behaviour(lacks="work_queues")
    async def test_a_work_queue_is_refused(self, scene: Scene) -> None:
        topic = scene.pubsub.topic(scene.name("refused"))
        await _refused(scene, "work_queues", lambda: topic.create(work_queue=True))
        assert not await topic.exists()

    @behaviour(lacks="expiration")
    async def test_expiring_is_refused(self, scene: Scene) -> None:
        await _option_refused(scene, "expiration", expires_after=2 * 86_400)

    @behaviour(lacks="updates")
    async def test_changing_what_exists_is_refused(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        wanted = TopicConfig(name=topic.name, duplicate_window=0)
        await _refused(scene, "updates", lambda: update_topic(scene.broker, wanted))
        before = (await sub.describe()).config
        change = replace(before, ack_deadline=60)
        await _refused(scene, "updates", lambda: update_subscription(scene.broker, change))
        assert (await sub.describe()).config == before

    @behaviour("updates", lacks="filter_updates")
    async def test_a_new_filter_of_what_exists_is_refused(self, scene: Scene) -> None:
        _, sub = await scene.pair()
        before = (await sub.describe()).config
        await _refused(scene, "filter_updates", lambda: sub.update(filter="attributes:other"))
        assert (await sub.describe()).config == before

    @behaviour(lacks="detaching")
    async def test_detaching_is_refused_and_nothing_dropped(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        await topic.publish_message(b"kept")
        await _refused(scene, "detaching", lambda: detach_subscription(scene.broker, sub.name))
        assert [d.record.data for d in await scene.pull(sub)] == [b"kept"]

    # Not claimed, and the answer is honest.

    @behaviour(lacks="replay")
    async def test_without_replay_there_is_no_log(self, scene: Scene) -> None:
        assert scene.broker.log is None

    @behaviour(lacks="backlog")
    async def test_a_backlog_that_is_not_counted_is_not_shown_as_a_number(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair()
        await topic.publish_message(b"x")
        status = await sub.describe()
        assert status.unsettled is None and status.config.topic == topic.name
        with pytest.raises(UnimplementedError, match="'backlog'"):
            _ = status.backlog

    @behaviour(lacks="delivery_attempts")
    async def test_an_attempt_that_is_not_counted_is_not_made_up(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        await topic.publish_message(b"x")
        [first] = await scene.pull(sub)
        await scene.settle(sub, first, Verb.NACK)
        [second] = await scene.pull(sub)
        assert first.delivery_attempt in (0, 1) and second.delivery_attempt in (0, 2)

    @behaviour(lacks="outlives_topic")
    async def test_a_subscription_goes_with_its_topic(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        await topic.publish_message(b"gone")
        await topic.delete()
        with pytest.raises(NotFoundError):
            await scene.pull(sub)
