"""One of a key at a time, in order, whatever happens to it."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from penstock import Message
from penstock.testing.conformance.harness import Scene, behaviour


class Ordering:
    @behaviour()
    async def test_messages_of_a_key_arrive_in_order_one_at_a_time(self, scene: Scene) -> None:
        topic, sub = await scene.pair(message_ordering=True)
        running: dict[str | None, int] = defaultdict(int)
        overlaps: list[str | None] = []

        async def handle(message: Message) -> None:
            running[message.ordering_key] += 1
            if running[message.ordering_key] > 1:
                overlaps.append(message.ordering_key)
            await asyncio.sleep(0.01 * scene.second)
            running[message.ordering_key] -= 1
            message.ack()

        received = scene.receive(sub, handle)
        for n in range(30):
            await topic.publish_message(b"%d" % n, ordering_key=f"key-{n % 3}")
        await scene.eventually(lambda: len(received) == 30)
        assert overlaps == []
        for key in range(3):
            mine = [int(m.data) for m in received if m.ordering_key == f"key-{key}"]
            assert mine == list(range(key, 30, 3))

    @behaviour()
    async def test_a_nacked_message_comes_back_before_later_ones_of_its_key(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair(message_ordering=True)
        refused: set[bytes] = set()

        def handle(message: Message) -> None:
            if message.data in (b"1", b"3") and message.data not in refused:
                refused.add(message.data)
                message.nack()
            else:
                message.ack()

        received = scene.receive(sub, handle)
        for n in range(5):
            await topic.publish_message(b"%d" % n, ordering_key="key")
        await scene.eventually(lambda: len(received) == 7)
        assert [int(m.data) for m in received] == [0, 1, 1, 2, 3, 3, 4]

    @behaviour()
    async def test_an_expired_message_comes_back_before_later_ones_of_its_key(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair(message_ordering=True, ack_deadline=scene.second)
        forgotten: list[Message] = []

        def handle(message: Message) -> None:
            if message.data == b"0" and not forgotten:
                forgotten.append(message)
            else:
                message.ack()

        received = scene.receive(sub, handle)
        for n in range(3):
            await topic.publish_message(b"%d" % n, ordering_key="key")
        await scene.eventually(lambda: len(received) == 4)
        assert [int(m.data) for m in received] == [0, 0, 1, 2]

    @behaviour()
    async def test_a_key_that_waits_does_not_hold_the_others(self, scene: Scene) -> None:
        topic, sub = await scene.pair(message_ordering=True)
        received = scene.receive(sub, lambda m: m.ack() if m.ordering_key != "stuck" else None)
        for key in ("stuck", "free", "stuck", "free", None):
            await topic.publish_message(b"x", ordering_key=key)
        await scene.eventually(lambda: len(received) == 4)
        await scene.seconds(0.2)
        keys = [m.ordering_key for m in received]
        assert keys.count("stuck") == 1 and keys.count("free") == 2 and keys.count(None) == 1

    @behaviour("ordering")
    async def test_the_broker_itself_lends_one_of_a_key_at_a_time(self, scene: Scene) -> None:
        topic, sub = await scene.pair(message_ordering=True)
        for n in range(4):
            await topic.publish_message(b"%d" % n, ordering_key=f"key-{n % 2}")
        taken = await scene.pull(sub)
        assert [d.record.data for d in taken] == [b"0", b"1"]
        assert await scene.pull(sub) == []
