"""A subscriber on this broker: flow control, pause, close, failure."""

from __future__ import annotations

import asyncio

from penstock import FlowControl, Message, PushDelivery
from penstock.testing.conformance.harness import Scene, behaviour


class StreamingPull:
    @behaviour()
    async def test_no_more_than_max_messages_are_in_flight(self, scene: Scene) -> None:
        topic, sub = await scene.pair(flow_control=FlowControl(max_messages=3))
        received = scene.receive(sub, lambda _: None)
        for n in range(10):
            await topic.publish_message(b"%d" % n)
        await scene.eventually(lambda: len(received) == 3)
        await scene.seconds(0.3)
        assert len(received) == 3
        received[0].ack()
        await scene.eventually(lambda: len(received) == 4)

    @behaviour()
    async def test_no_more_than_max_bytes_are_in_flight(self, scene: Scene) -> None:
        topic, sub = await scene.pair(flow_control=FlowControl(max_bytes=1000))
        received = scene.receive(sub, lambda _: None)
        for _ in range(5):
            await topic.publish_message(b"x" * 500)
        await scene.eventually(lambda: len(received) == 2)
        await scene.seconds(0.3)
        assert len(received) == 2
        received[0].ack()
        await scene.eventually(lambda: len(received) == 3)

    @behaviour()
    async def test_attributes_count_in_the_window(self, scene: Scene) -> None:
        topic, sub = await scene.pair(flow_control=FlowControl(max_bytes=2000))
        received = scene.receive(sub, lambda _: None)
        for _ in range(20):
            await topic.publish_message(b"x", {f"key-{n}": "v" * 500 for n in range(10)})
        await scene.eventually(lambda: len(received) == 1)
        await scene.seconds(0.3)
        assert len(received) == 1
        received[0].ack()
        await scene.eventually(lambda: len(received) == 2)

    @behaviour()
    async def test_a_message_larger_than_the_window_still_goes_through(self, scene: Scene) -> None:
        topic, sub = await scene.pair(flow_control=FlowControl(max_bytes=10))
        received = scene.receive(sub)
        for _ in range(3):
            await topic.publish_message(b"x" * 100)
        await scene.eventually(lambda: len(received) == 3)

    @behaviour()
    async def test_nothing_is_delivered_while_paused(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        received = scene.receive(sub)
        await topic.publish_message(b"1")
        await scene.eventually(lambda: len(received) == 1)
        sub.pause()
        await topic.publish_message(b"2")
        await scene.seconds(0.3)
        assert len(received) == 1
        sub.resume()
        await scene.eventually(lambda: len(received) == 2)

    @behaviour()
    async def test_closing_waits_for_handlers_and_sends_their_acks(self, scene: Scene) -> None:
        topic, sub = await scene.pair(ack_deadline=5 * scene.second)
        finished: list[Message] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0.3 * scene.second)
            message.ack()
            finished.append(message)

        received = scene.receive(sub, handle)
        for _ in range(5):
            await topic.publish_message(b"x")
        await scene.eventually(lambda: len(received) == 5)
        report = await sub.close()
        assert len(finished) == 5
        assert report.clean and not report.given_back
        await scene.seconds(6)
        assert await scene.pull(sub) == []

    @behaviour()
    async def test_a_deleted_subscription_ends_its_stream_with_an_error(self, scene: Scene) -> None:
        _, sub = await scene.pair()
        errors: list[BaseException] = []
        closed: list[bool] = []
        sub.on("error", errors.append)
        sub.on("close", lambda: closed.append(True))
        scene.receive(sub)
        await scene.seconds(0.1)
        await sub.delete()
        await scene.eventually(lambda: closed, within=60)
        assert errors and getattr(errors[-1], "code", None) == 5
        assert not sub.is_open

    @behaviour()
    async def test_a_thousand_messages_all_arrive(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        received = scene.receive(sub)
        sent = [await topic.publish_message(b"%d" % n) for n in range(1000)]
        await scene.eventually(lambda: len(received) >= 1000, within=30)
        assert sorted(m.id for m in received) == sorted(sent)

    @behaviour()
    async def test_iterating_receives_and_can_be_left(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        for n in range(5):
            await topic.publish_message(b"%d" % n)
        seen: set[bytes] = set()
        async for message in sub:
            async with message:
                seen.add(message.data)
            if len(seen) == 3:
                break
        async for message in sub:
            message.ack()
            seen.add(message.data)
            if len(seen) == 5:
                break
        assert seen == {b"0", b"1", b"2", b"3", b"4"}

    @behaviour("push")
    async def test_pushed_messages_are_received_like_any_other(self, scene: Scene) -> None:
        push = PushDelivery(subject=scene.name("deliver"), group="workers")
        topic, sub = await scene.pair(push=push, ack_deadline=2 * scene.second)
        await topic.publish_message(b"first")
        received = scene.receive(
            sub, lambda m: m.nack() if m.delivery_attempt == 1 and m.data == b"3" else m.ack()
        )
        other = scene.pubsub.subscription(sub.name)
        others = scene.receive(other)
        for n in range(50):
            await topic.publish_message(b"%d" % n)
        await scene.eventually(lambda: len({m.id for m in received + others}) == 51, within=20)
        await sub.close()
        await other.close()
        await scene.backlog_becomes(sub, 0)
