"""Ordering kept by the client, for brokers that send a key's messages ahead.

The subscription is created without ordering, so the broker sends ahead; the stream orders.
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

from penstock import DeadLetterPolicy, FlowControl, Message, Streaming
from penstock.brokers.memory import MemoryBroker
from penstock.config import TopicConfig
from penstock.message import AckResponse, Settlement, Verb
from tests.support.fakes import FlakyBroker, subscription_on
from tests.support.scenes import now, orders


@asynccontextmanager
async def sending_ahead(**options):
    async with orders(**options) as (topic, sub):
        sub.set_options(message_ordering=True, streaming=Streaming(max_streams=1))
        yield topic, sub


async def publish(topic, *texts):
    for text in texts:
        await topic.publish_message(text.encode(), ordering_key="key")


async def test_a_nack_brings_the_key_back_from_that_message():
    async with sending_ahead() as (topic, sub):
        seen = []

        def handle(message):
            seen.append((message.data.decode(), message.delivery_attempt))
            if message.data == b"b" and message.delivery_attempt == 1:
                message.nack()
            else:
                message.ack()

        sub.on("message", handle)
        await publish(topic, "a", "b", "c", "d")
        sub.open()
        await asyncio.sleep(1)
        assert seen == [("a", 1), ("b", 1), ("b", 2), ("c", 1), ("d", 1)]


async def test_a_redelivery_waits_for_the_handler_that_still_has_the_message():
    async with sending_ahead(ack_deadline=10) as (topic, sub):
        spans: list[tuple[str, float, float]] = []

        async def handle(message):
            began = now()
            await asyncio.sleep(15 if message.delivery_attempt == 1 else 1)
            spans.append((message.data.decode(), began, now()))
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, "a")
        await asyncio.sleep(8)
        await publish(topic, "b")
        await asyncio.sleep(200)
        spans.sort(key=lambda span: span[1])
        for (_, _, ended), (_, began, _) in pairwise(spans):
            assert began >= ended
        assert [name for name, _, _ in spans][:2] == ["a", "a"]
        assert (await sub.describe()).backlog == 0


async def test_what_expires_in_its_lane_is_never_handed_over():
    async with sending_ahead(ack_deadline=10) as (topic, sub):
        seen: list[Message] = []
        ours: list[bool] = []

        def handle(message):
            ours.append(sub.stream.holds(message))
            seen.append(message)
            if message.data == b"a":
                message.modify_ack_deadline(300)
            else:
                message.ack()

        sub.on("message", handle)
        await publish(topic, "a", "b")
        sub.open()
        await asyncio.sleep(55)
        assert len(seen) == 1
        seen[0].ack()
        await asyncio.sleep(100)
        assert [message.data for message in seen] == [b"a", b"b"]
        assert all(ours)


async def test_what_waits_for_a_handler_to_end_is_kept_meanwhile():
    async with orders(ack_deadline=10, flow_control=FlowControl(max_messages=1)) as (topic, sub):
        starts = []

        async def handle(message):
            starts.append((message.delivery_attempt, now()))
            if message.delivery_attempt == 1:
                await asyncio.sleep(25)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, "a")
        await asyncio.sleep(100)
        assert starts == [(1, 0), (2, 25)]


async def test_fetching_ahead_and_ordering_do_not_block_each_other():
    async with orders(flow_control=FlowControl(max_messages=1)) as (topic, sub):
        sub.set_options(
            message_ordering=True, streaming=Streaming(max_streams=1, high_water_mark=5)
        )
        seen = []
        sub.on("message", lambda m: (seen.append(m.data.decode()), m.ack()))
        await publish(topic, "a", "b", "c")
        sub.open()
        await asyncio.sleep(1)
        assert seen == ["a", "b", "c"]


class ForgetsOrder(FlakyBroker):
    """Redelivers what failed only after everything fresh, and says that it does not order."""

    capabilities = replace(FlakyBroker.capabilities, ordering=False)

    async def settle(self, subscription, settlements):
        late = [s for s in settlements if s.verb is Verb.NACK]
        on_time = [s for s in settlements if s.verb is not Verb.NACK]
        answers = await super().settle(subscription, on_time)
        nacked = [Settlement(s.ack_id, Verb.NACK, s.seconds or 0.5) for s in late]
        return [*answers, *await super().settle(subscription, nacked)]


async def test_a_key_waits_for_a_failed_message_that_the_broker_brings_back_late():
    async with subscription_on(ForgetsOrder()) as (topic, sub):
        sub.set_options(message_ordering=True)
        seen = []

        def handle(message):
            seen.append(message.data.decode())
            if message.data in (b"b", b"d") and message.delivery_attempt == 1:
                message.nack()
            else:
                message.ack()

        sub.on("message", handle)
        sub.open()
        for text in "abcdef":
            await publish(topic, text)
            await asyncio.sleep(0.01)
        await asyncio.sleep(5)
        assert "".join(seen) == "abbcddef"


async def test_a_key_does_not_wait_for_ever_for_a_message_that_went_elsewhere():
    broker = ForgetsOrder()
    async with subscription_on(broker) as (topic, _):
        await broker.admin.create_topic(TopicConfig(name="dead"))
        policy = DeadLetterPolicy(topic="dead", max_delivery_attempts=1)
        strict = await topic.subscription("strict", dead_letter_policy=policy).create()
        strict.set_options(message_ordering=True)
        seen = []

        def handle(message):
            seen.append((message.data.decode(), now()))
            if message.data == b"a":
                message.nack()
            else:
                message.ack()

        strict.on("message", handle)
        strict.open()
        await publish(topic, "a", "b")
        await asyncio.sleep(60)
        assert [text for text, _ in seen] == ["a", "b"]
        assert seen[1][1] <= 6


async def test_a_message_that_fails_again_and_again_is_waited_for_each_time():
    async with subscription_on(ForgetsOrder()) as (topic, sub):
        sub.set_options(message_ordering=True)
        seen = []

        def handle(message):
            seen.append(message.data.decode())
            if message.data == b"a" and message.delivery_attempt < 5:
                message.nack(2)
            else:
                message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, "a", "b")
        await asyncio.sleep(30)
        assert "".join(seen) == "aaaaab"


async def test_a_redelivery_that_is_here_already_goes_before_later_ones():
    async with subscription_on(ForgetsOrder(), ack_deadline=10) as (topic, sub):
        sub.set_options(message_ordering=True)
        seen = []

        async def handle(message):
            seen.append((message.data.decode(), message.delivery_attempt, now()))
            if message.delivery_attempt == 1 and message.data == b"a":
                await asyncio.sleep(12)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, "a", "b", "c")
        await asyncio.sleep(60)
        assert [text for text, _, _ in seen] == ["a", "a", "b", "c"]
        assert seen[1][2] == 12


class SettlesSlowly(FlakyBroker):
    """Knows no order, and takes a while to hear of what became of a message."""

    capabilities = replace(MemoryBroker.capabilities, ordering=False)
    unheard = 0
    pulled_meanwhile = 0

    async def pull(self, subscription, **options):
        self.pulled_meanwhile += self.unheard
        return await super().pull(subscription, **options)

    async def settle(self, subscription, settlements):
        self.unheard += len(settlements)
        await asyncio.sleep(1)
        self.unheard -= len(settlements)
        return await super().settle(subscription, settlements)


async def test_a_broker_that_knows_no_order_is_asked_when_it_has_heard_all():
    broker = SettlesSlowly()
    flow = FlowControl(max_messages=2)
    async with subscription_on(broker) as (topic, sub):
        sub.set_options(message_ordering=True, flow_control=flow)
        seen = []
        sub.on("message", lambda m: (seen.append(m.data), m.ack()))
        await publish(topic, "a", "b", "c", "d", "e")
        sub.open()
        await asyncio.sleep(20)
        assert seen == [b"a", b"b", b"c", b"d", b"e"]
        assert broker.pulled_meanwhile == 0


async def test_what_waited_too_long_is_given_back_with_all_behind_it():
    async with sending_ahead(ack_deadline=10) as (topic, sub):
        seen = []
        sub.open()
        await publish(topic, "a")
        await asyncio.sleep(3000)
        await publish(topic, "b", "c")
        await asyncio.sleep(600)
        sub.on("message", lambda m: (seen.append(m.data), m.ack()))
        await asyncio.sleep(100)
        assert seen == [b"a", b"b", b"c"]


class TakesBack(FlakyBroker):
    """Says of one message, when its lease is renewed, that it is no longer ours."""

    takes_back: str | None = None

    async def settle(self, subscription, settlements):
        answers = list(await super().settle(subscription, settlements))
        for at, settlement in enumerate(settlements):
            if settlement.verb is Verb.EXTEND and settlement.ack_id == self.takes_back:
                answers[at] = AckResponse.INVALID
        return answers


async def test_what_is_no_longer_ours_does_not_get_its_turn():
    broker = TakesBack()
    async with subscription_on(broker, ack_deadline=10) as (topic, sub):
        sub.set_options(message_ordering=True, streaming=Streaming(max_streams=1))
        handled = []

        async def handle(message):
            if message.data == b"a":
                message.modify_ack_deadline(100)
                await asyncio.sleep(30)
            handled.append((message.data, message.ack_id == broker.takes_back))
            message.ack()

        sub.on("message", handle)
        await publish(topic, "a", "b")
        sub.open()
        await asyncio.sleep(1)
        [second] = [m for m in sub.stream.deliveries.messages() if m.data == b"b"]
        broker.takes_back = second.ack_id
        await asyncio.sleep(60)
        assert handled == [(b"a", False), (b"b", False)], "as it came again, and soon"
