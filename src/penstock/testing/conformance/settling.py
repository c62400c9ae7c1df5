"""Ack, nack, extend, reject, and deadlines that pass."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from penstock import Message, RetryPolicy
from penstock.message import AckResponse, Delivery, Verb
from penstock.testing.conformance.harness import Scene, behaviour


class Settling:
    @behaviour()
    async def test_an_acked_message_does_not_come_again(self, scene: Scene) -> None:
        topic, sub = await scene.pair(ack_deadline=scene.second)
        received = scene.receive(sub)
        await topic.publish_message(b"x")
        await scene.eventually(lambda: received)
        await scene.seconds(3)
        assert len(received) == 1

    @behaviour("delivery_attempts")
    async def test_a_nacked_message_comes_back_at_once_as_the_next_attempt(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair()
        received = scene.receive(sub, lambda m: m.nack() if m.delivery_attempt < 4 else m.ack())
        message_id = await topic.publish_message(b"x")
        await scene.eventually(lambda: len(received) == 4, within=5)
        await scene.seconds(0.2)
        assert [m.delivery_attempt for m in received] == [1, 2, 3, 4]
        assert {m.id for m in received} == {message_id}
        assert len({m.ack_id for m in received}) == 4

    @behaviour("delivery_attempts")
    async def test_a_message_nobody_settles_comes_back_after_its_deadline(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair(ack_deadline=2 * scene.second)
        await topic.publish_message(b"x")
        [first] = await scene.pull(sub)
        assert await scene.pull(sub) == []
        await scene.seconds(1.5)
        [second] = await scene.pull(sub)
        assert second.record == first.record
        assert (first.delivery_attempt, second.delivery_attempt) == (1, 2)
        assert first.ack_id != second.ack_id

    @behaviour()
    async def test_an_extended_deadline_is_kept(self, scene: Scene) -> None:
        topic, sub = await scene.pair(ack_deadline=2 * scene.second)
        await topic.publish_message(b"x")
        [delivery] = await scene.pull(sub)
        for _ in range(4):
            await scene.seconds(0.8)  # Well before it ends: a broker may be busy for a moment.
            response = await scene.settle(sub, delivery, Verb.EXTEND, 2 * scene.second)
            assert response is AckResponse.SUCCESS
        assert await scene.pull(sub) == []
        await scene.settle(sub, delivery, Verb.ACK)
        await scene.seconds(3)
        assert await scene.pull(sub) == []

    @behaviour()
    async def test_a_handler_may_ask_for_more_time_than_the_deadline(self, scene: Scene) -> None:
        topic, sub = await scene.pair(ack_deadline=2 * scene.second)
        received = scene.receive(sub, lambda m: m.modify_ack_deadline(7 * scene.second))
        await topic.publish_message(b"x")
        await scene.eventually(lambda: received)
        await scene.seconds(5)
        assert len(received) == 1
        received[0].ack()
        await scene.seconds(3)
        assert len(received) == 1

    @behaviour("delayed_nack")
    async def test_a_nack_with_a_delay_comes_back_after_it(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        await topic.publish_message(b"x")
        [delivery] = await scene.pull(sub)
        await scene.settle(sub, delivery, Verb.NACK, 3 * scene.second)
        assert await scene.pull(sub) == []
        await scene.seconds(2.2)
        [again] = await scene.pull(sub)
        assert again.record == delivery.record

    @behaviour("retry_policy")
    async def test_a_retry_policy_delays_every_redelivery_and_doubles(self, scene: Scene) -> None:
        second = scene.second
        policy = RetryPolicy(minimum_backoff=second, maximum_backoff=3 * second)
        topic, sub = await scene.pair(retry_policy=policy)
        times: list[float] = []

        def handle(message: Message) -> None:
            times.append(asyncio.get_running_loop().time())
            if len(times) < 5:
                message.nack()
            else:
                message.ack()

        received = scene.receive(sub, handle)
        await topic.publish_message(b"x")
        await scene.eventually(lambda: len(received) == 5, within=20)
        waits = [(b - a) / second for a, b in pairwise(times)]
        for wait, least in zip(waits, (1, 2, 3, 3), strict=True):
            assert least - 0.05 <= wait <= least + 0.9

    @behaviour()
    async def test_a_rejected_message_never_comes_again(self, scene: Scene) -> None:
        topic, sub = await scene.pair(ack_deadline=scene.second)
        received = scene.receive(sub, lambda m: m.reject())
        await topic.publish_message(b"x")
        await scene.eventually(lambda: received)
        await scene.seconds(3)
        assert len(received) == 1

    @behaviour()
    async def test_settling_a_batch_answers_each_for_itself(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        for n in range(10):
            await topic.publish_message(b"%d" % n)
        held: list[Delivery] = []
        while len(held) < 10:
            held += await scene.pull(sub)
        for n, delivery in enumerate(held):
            await scene.settle(sub, delivery, Verb.ACK if n % 2 else Verb.NACK)
        again: list[Delivery] = []
        while len(again) < 5:
            again += await scene.pull(sub)
        assert {d.record.data for d in again} == {held[n].record.data for n in range(0, 10, 2)}

    @behaviour()
    async def test_a_pull_takes_no_more_than_it_asked_for(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        for _ in range(10):
            await topic.publish_message(b"x" * 100)
        by_count = await scene.broker.pull(
            sub.name, max_messages=3, max_bytes=10**9, wait=scene.second
        )
        by_bytes = await scene.broker.pull(
            sub.name, max_messages=10, max_bytes=250, wait=scene.second
        )
        larger = await scene.broker.pull(sub.name, max_messages=10, max_bytes=10, wait=scene.second)
        assert 1 <= len(by_count) <= 3
        assert 1 <= len(by_bytes) <= 2
        assert len(larger) == 1
