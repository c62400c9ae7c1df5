"""The port's promises, method by method: what raises, what is answered, what may run side by side,
what cancelling and closing leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock import Draft, Receipt, Subscription, Topic
from penstock.errors import (
    ClosedError,
    NotFoundError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from penstock.message import AckResponse, Delivery, PublishFault, Settlement, Verb
from penstock.optional_verbs import publish_telling
from penstock.testing.conformance.harness import Scene, behaviour

# How long pulls wait here, and how soon they must be done: well before their time is up.
_LONG, _SOON = 600.0, 60.0


async def _publish(scene: Scene, topic: Topic, *texts: str) -> list[Receipt]:
    drafts = [Draft.of(text.encode()) for text in texts]
    return _receipts(await scene.broker.publish(topic.name, drafts))


def _receipts(answers: Sequence[Receipt | PublishFault]) -> list[Receipt]:
    receipts = [answer for answer in answers if isinstance(answer, Receipt)]
    assert len(receipts) == len(answers)
    return receipts


def _data(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.record.data.decode() for delivery in deliveries]


def _waiting_pull(scene: Scene, sub: Subscription) -> asyncio.Task[Sequence[Delivery]]:
    pull = scene.broker.pull(sub.name, max_messages=1, max_bytes=10**6, wait=_LONG)
    return asyncio.get_running_loop().create_task(pull)


async def _pull_all(scene: Scene, sub: Subscription, wanted: set[str], within: float) -> list[str]:
    """Pull and ack until all that is wanted came, or time is up."""
    loop = asyncio.get_running_loop()
    until, seen = loop.time() + within * scene.second, list[str]()
    while not wanted <= set(seen) and loop.time() < until:
        deliveries = await scene.pull(sub)
        seen += _data(deliveries)
        settlements = [Settlement(delivery.ack_id, Verb.ACK) for delivery in deliveries]
        await scene.broker.settle(sub.name, settlements)
    return seen


class Contract:
    # Publish.

    @behaviour()
    async def test_publishing_to_a_missing_topic_raises_for_the_whole_call(
        self, scene: Scene
    ) -> None:
        name = scene.name("missing")
        for count in (1, 3):
            with pytest.raises(TopicNotFoundError, match=name):
                await scene.broker.publish(name, [Draft.of(b"x")] * count)

    @behaviour()
    async def test_publishing_to_a_topic_that_was_deleted_raises_too(self, scene: Scene) -> None:
        topic = await scene.topic()
        await _publish(scene, topic, "before")
        await topic.delete()
        with pytest.raises(TopicNotFoundError, match=topic.name):
            await scene.broker.publish(topic.name, [Draft.of(b"x"), Draft.of(b"y")])

    @behaviour()
    async def test_every_draft_has_its_own_answer_in_its_place(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        receipts = await _publish(scene, topic, *map(str, range(100)))
        held: list[Delivery] = []
        while len(held) < 100:
            held += await scene.pull(sub, 100)
        delivered = {int(delivery.record.data): delivery.record for delivery in held}
        for n, receipt in enumerate(receipts):
            assert receipt.message_id == delivered[n].message_id
            assert receipt.sequence == delivered[n].sequence

    @behaviour()
    async def test_it_is_told_that_each_draft_was_sent_before_it_is_answered(
        self, scene: Scene
    ) -> None:
        topic = await scene.topic()
        told: list[int] = []
        drafts = [Draft.of(b"x", ordering_key=key) for key in (None, "ann", None, "bob", "ann")]
        await publish_telling(scene.broker, told.extend, topic.name, drafts)
        assert sorted(told) == [*range(len(drafts))]

    @behaviour()
    async def test_publishes_side_by_side_each_keep_their_order(self, scene: Scene) -> None:
        topic, _ = await scene.pair()
        calls = [_publish(scene, topic, *map(str, range(10))) for _ in range(20)]
        stored = await asyncio.gather(*calls)
        assert len({receipt.message_id for receipts in stored for receipt in receipts}) == 200
        for receipts in stored:
            sequences = [receipt.sequence for receipt in receipts]
            assert sequences == sorted(sequences)

    @behaviour()
    async def test_a_cancelled_publish_takes_no_other_along(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        loop = asyncio.get_running_loop()
        for n in range(10):
            cancelled = loop.create_task(_publish(scene, topic, f"cancelled-{n}"))
            kept = loop.create_task(_publish(scene, topic, f"kept-{n}"))
            await asyncio.sleep(0)
            cancelled.cancel()
            await kept
            await asyncio.wait({cancelled})
        wanted = {f"kept-{n}" for n in range(10)}
        seen = await _pull_all(scene, sub, wanted, within=20)
        assert wanted <= set(seen) <= wanted | {f"cancelled-{n}" for n in range(10)}
        assert len(seen) == len(set(seen))

    @behaviour()
    async def test_nothing_asked_is_nothing_answered(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        assert list(await scene.broker.publish(topic.name, [])) == []
        assert list(await scene.broker.settle(sub.name, [])) == []
        await _publish(scene, topic, "x")
        for few in (0, -1):
            assert not await scene.broker.pull(
                sub.name, max_messages=few, max_bytes=1000, wait=scene.second
            )
        assert _data(await scene.pull(sub)) == ["x"]

    @behaviour()
    async def test_nobody_looks_whether_what_nothing_is_asked_of_is_there(
        self, scene: Scene
    ) -> None:
        name = scene.name("missing")
        assert list(await scene.broker.publish(name, [])) == []
        assert list(await scene.broker.settle(name, [])) == []
        assert not await scene.broker.pull(name, max_messages=0, max_bytes=1000, wait=_LONG)

    # Pull.

    @behaviour()
    async def test_where_there_is_room_for_no_bytes_messages_come_one_by_one(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair()
        await _publish(scene, topic, "0", "1", "2", "3")
        seen: list[str] = []
        for size in (0, -1, 0, -1):
            taken = await scene.broker.pull(
                sub.name, max_messages=10, max_bytes=size, wait=10 * scene.second
            )
            assert len(taken) == 1
            seen += _data(taken)
        assert sorted(seen) == ["0", "1", "2", "3"]

    @behaviour()
    async def test_a_pull_returns_with_the_first_message_and_not_when_its_time_is_up(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair()
        pull = _waiting_pull(scene, sub)
        await scene.seconds(0.2)
        assert not pull.done()
        await _publish(scene, topic, "x")
        async with asyncio.timeout(_SOON):
            assert _data(await pull) == ["x"]

    @behaviour()
    async def test_a_pull_that_waits_for_nothing_takes_what_is_there(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        for wait in (0.0, -1.0):
            assert not await scene.broker.pull(sub.name, max_messages=1, max_bytes=1000, wait=wait)
        await _publish(scene, topic, "x")
        taken: list[Delivery] = []
        while not taken:
            taken += await scene.broker.pull(sub.name, max_messages=1, max_bytes=1000, wait=0)
        assert _data(taken) == ["x"]

    @behaviour()
    async def test_pulls_side_by_side_share_what_comes(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        pulls = [_waiting_pull(scene, sub) for _ in range(5)]
        await scene.seconds(0.2)
        await _publish(scene, topic, "0", "1", "2", "3", "4")
        async with asyncio.timeout(_SOON):
            taken = [delivery for pulled in await asyncio.gather(*pulls) for delivery in pulled]
        assert sorted(_data(taken)) == ["0", "1", "2", "3", "4"]
        assert len({delivery.ack_id for delivery in taken}) == 5

    @behaviour()
    async def test_a_cancelled_pull_loses_nothing(self, scene: Scene) -> None:
        topic, sub = await scene.pair(ack_deadline=2 * scene.second)
        # Cancelled while nothing is there, while something comes, and right after.
        for turns in range(20):
            pull = _waiting_pull(scene, sub)
            await scene.seconds(0.02)
            publish = asyncio.get_running_loop().create_task(_publish(scene, topic, str(turns)))
            for _ in range(turns):
                await asyncio.sleep(0)
            pull.cancel()
            await publish
            await asyncio.wait({pull})
            if not pull.cancelled():
                for delivery in pull.result():
                    await scene.settle(sub, delivery, Verb.NACK)
        wanted = {str(n) for n in range(20)}
        assert set(await _pull_all(scene, sub, wanted, within=20)) == wanted

    @behaviour()
    async def test_a_cancelled_pull_leaves_its_message_to_another_that_waits(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair(ack_deadline=2 * scene.second)
        for turns in range(10):
            leaves, stays = _waiting_pull(scene, sub), _waiting_pull(scene, sub)
            await scene.seconds(0.02)
            publish = asyncio.get_running_loop().create_task(_publish(scene, topic, str(turns)))
            for _ in range(turns):
                await asyncio.sleep(0)
            leaves.cancel()
            await publish
            await asyncio.wait({leaves})
            if not leaves.cancelled():
                [taken] = leaves.result()
                await scene.settle(sub, taken, Verb.NACK)
            async with asyncio.timeout(_SOON):
                [delivery] = await stays
            assert _data([delivery]) == [str(turns)]
            await scene.settle(sub, delivery, Verb.ACK)

    @behaviour()
    async def test_a_missing_subscription_can_be_neither_pulled_nor_settled(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair()
        await _publish(scene, topic, "x")
        [delivery] = await scene.pull(sub)
        await sub.delete()
        for name in (sub.name, scene.name("never-was")):
            with pytest.raises(SubscriptionNotFoundError, match=name):
                await scene.broker.pull(name, max_messages=1, max_bytes=1000, wait=0)
            with pytest.raises(SubscriptionNotFoundError, match=name):
                await scene.broker.settle(name, [Settlement(delivery.ack_id, Verb.ACK)])

    @behaviour()
    async def test_deleting_a_subscription_ends_the_pulls_that_wait_on_it(
        self, scene: Scene
    ) -> None:
        _, sub = await scene.pair()
        pulls = [_waiting_pull(scene, sub) for _ in range(2)]
        await scene.seconds(0.3)
        await sub.delete()
        async with asyncio.timeout(_SOON):
            for pull in pulls:
                with pytest.raises(NotFoundError):
                    await pull

    # Settle.

    @behaviour()
    async def test_an_ack_id_that_was_never_lent_has_no_effect(self, scene: Scene) -> None:
        deadline = 60 * scene.second
        topic, sub = await scene.pair(ack_deadline=deadline)
        other = await scene.subscription(topic, ack_deadline=deadline)
        await _publish(scene, topic, "x")
        [lent], [elsewhere] = await scene.pull(sub), await scene.pull(other)
        for ack_id in (topic.name, "", "no such\r\nid", elsewhere.ack_id):
            for verb in (Verb.ACK, Verb.NACK, Verb.REJECT):
                settlements = [Settlement(ack_id, verb), Settlement(lent.ack_id, Verb.EXTEND, 30.0)]
                responses = await scene.broker.settle(sub.name, settlements)
                assert list(responses) == [AckResponse.SUCCESS] * 2
        assert await scene.pull(sub) == [] and await scene.pull(other) == []
        await scene.settle(other, elsewhere, Verb.NACK)
        assert _data(await scene.pull(other)) == ["x"]

    @behaviour("exactly_once")
    async def test_with_exactly_once_delivery_such_an_ack_id_is_invalid(self, scene: Scene) -> None:
        topic, sub = await scene.pair(enable_exactly_once_delivery=True)
        for ack_id in (topic.name, "", "no such\r\nid"):
            for verb in (Verb.ACK, Verb.NACK, Verb.EXTEND):
                [response] = await scene.broker.settle(sub.name, [Settlement(ack_id, verb, 5.0)])
                assert response is AckResponse.INVALID

    @behaviour()
    async def test_the_first_settlement_of_a_delivery_in_a_call_wins(self, scene: Scene) -> None:
        topic, sub = await scene.pair(ack_deadline=60 * scene.second)
        await _publish(scene, topic, "acked", "nacked")
        lent: dict[str, str] = {}
        while len(lent) < 2:
            lent |= {d.record.data.decode(): d.ack_id for d in await scene.pull(sub)}
        settlements = [
            Settlement(lent["acked"], Verb.EXTEND, 30.0),
            Settlement(lent["acked"], Verb.ACK),
            Settlement(lent["nacked"], Verb.NACK),
            Settlement(lent["acked"], Verb.NACK),
            Settlement(lent["nacked"], Verb.ACK),
        ]
        responses = await scene.broker.settle(sub.name, settlements)
        assert list(responses) == [AckResponse.SUCCESS] * 5
        assert _data(await scene.pull(sub)) == ["nacked"]
        assert await scene.pull(sub) == []

    # The end.

    @behaviour()
    async def test_closing_ends_the_calls_that_wait(self, scene: Scene) -> None:
        _, sub = await scene.pair()
        pulls = [_waiting_pull(scene, sub) for _ in range(3)]
        await scene.seconds(0.3)
        await scene.broker.aclose()
        async with asyncio.timeout(_SOON):
            for pull in pulls:
                with pytest.raises(ClosedError):
                    await pull

    @behaviour()
    async def test_closing_twice_and_at_once_is_the_same_as_once(self, scene: Scene) -> None:
        await scene.pair()
        await asyncio.gather(scene.broker.aclose(), scene.broker.aclose())
        await scene.broker.aclose()
        with pytest.raises(ClosedError):
            await scene.broker.ping()

    @behaviour()
    async def test_a_closed_broker_says_so_whatever_it_is_asked(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        await _publish(scene, topic, "x")
        [delivery] = await scene.pull(sub)
        broker = scene.broker
        await broker.aclose()
        for call in (
            broker.publish(topic.name, [Draft.of(b"x")]),
            broker.publish(topic.name, []),
            broker.settle(sub.name, []),
            broker.pull(sub.name, max_messages=0, max_bytes=1000, wait=0),
            broker.pull(sub.name, max_messages=1, max_bytes=1000, wait=0),
            broker.pull(sub.name, max_messages=1, max_bytes=1000, wait=_LONG),
            broker.settle(sub.name, [Settlement(delivery.ack_id, Verb.ACK)]),
            broker.ping(),
            broker.admin.list_topics(),
            broker.admin.describe_subscription(sub.name),
            *([broker.log.extent(topic.name)] if broker.log is not None else []),
        ):
            with pytest.raises(ClosedError):
                await call
