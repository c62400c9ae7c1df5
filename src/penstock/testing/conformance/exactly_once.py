"""With exactly-once delivery, only the latest ack id is valid and success is final."""

from __future__ import annotations

from penstock import Message
from penstock.message import AckResponse, Settlement, Verb
from penstock.testing.conformance.harness import Scene, behaviour


class ExactlyOnce:
    @behaviour("exactly_once")
    async def test_after_a_successful_ack_nothing_comes_again(self, scene: Scene) -> None:
        topic, sub = await scene.pair(enable_exactly_once_delivery=True, ack_deadline=scene.second)
        responses: list[AckResponse] = []

        async def handle(message: Message) -> None:
            responses.append(await message.ack_with_response())

        received = scene.receive(sub, handle)
        await topic.publish_message(b"x")
        await scene.eventually(lambda: responses)
        await scene.seconds(3)
        assert responses == [AckResponse.SUCCESS]
        assert len(received) == 1

    @behaviour("exactly_once")
    async def test_an_ack_id_that_expired_is_invalid(self, scene: Scene) -> None:
        topic, sub = await scene.pair(enable_exactly_once_delivery=True, ack_deadline=scene.second)
        await topic.publish_message(b"x")
        [first] = await scene.pull(sub)
        await scene.seconds(1.5)
        [second] = await scene.pull(sub)
        assert await scene.settle(sub, first, Verb.ACK) is AckResponse.INVALID
        assert await scene.settle(sub, first, Verb.EXTEND, 5.0) is AckResponse.INVALID
        assert await scene.settle(sub, second, Verb.ACK) is AckResponse.SUCCESS
        assert await scene.settle(sub, second, Verb.ACK) is AckResponse.INVALID

    @behaviour("exactly_once")
    async def test_settling_twice_is_invalid_the_second_time(self, scene: Scene) -> None:
        topic, sub = await scene.pair(enable_exactly_once_delivery=True)
        responses: list[AckResponse] = []

        async def handle(message: Message) -> None:
            responses.append(await message.ack_with_response())
            responses.append(await message.ack_with_response())
            responses.append(await message.nack_with_response())

        scene.receive(sub, handle)
        await topic.publish_message(b"x")
        await scene.eventually(lambda: len(responses) == 3)
        assert responses == [AckResponse.SUCCESS, AckResponse.INVALID, AckResponse.INVALID]

    @behaviour("exactly_once")
    async def test_settling_twice_in_one_call_is_invalid_the_second_time(
        self, scene: Scene
    ) -> None:
        topic, sub = await scene.pair(enable_exactly_once_delivery=True)
        await topic.publish_message(b"x")
        [lent] = await scene.pull(sub)
        settlements = [
            Settlement(lent.ack_id, Verb.EXTEND, 30.0),
            Settlement(lent.ack_id, Verb.ACK),
            Settlement(lent.ack_id, Verb.ACK),
            Settlement(lent.ack_id, Verb.EXTEND, 30.0),
        ]
        responses = await scene.broker.settle(sub.name, settlements)
        assert list(responses) == [AckResponse.SUCCESS] * 2 + [AckResponse.INVALID] * 2

    @behaviour()
    async def test_without_it_the_answer_is_success(self, scene: Scene) -> None:
        topic, sub = await scene.pair()
        responses: list[AckResponse] = []

        async def handle(message: Message) -> None:
            responses.append(await message.ack_with_response())
            responses.append(await message.ack_with_response())

        scene.receive(sub, handle)
        await topic.publish_message(b"x")
        await scene.eventually(lambda: len(responses) == 2)
        assert responses == [AckResponse.SUCCESS, AckResponse.SUCCESS]
