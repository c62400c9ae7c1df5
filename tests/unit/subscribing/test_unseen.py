"""What nobody saw costs no attempt, so it is never dead-lettered: whatever kept it from a handler.

The policy allows one attempt: a single delivery that counts moves the message away.
"""

import asyncio
from contextlib import asynccontextmanager

from penstock import DeadLetterPolicy, FlowControl, Message, Streaming
from penstock.testing import settled
from tests.support.scenes import now, orders, publish


@asynccontextmanager
async def one_attempt(**options):
    async with orders() as (topic, _):
        pubsub = topic._pubsub
        dead = await pubsub.topic("dead").create()
        graveyard = await dead.subscription("graveyard").create()
        policy = DeadLetterPolicy(topic="dead", max_delivery_attempts=1)
        options = {"ack_deadline": 10, **options}
        sub = await topic.subscription("careful", dead_letter_policy=policy, **options).create()
        yield topic, sub, graveyard


async def dead(graveyard) -> int:
    return (await graveyard.describe()).backlog


async def test_open_without_a_listener_costs_nothing():
    async with one_attempt() as (topic, sub, graveyard):
        sub.open()
        await publish(topic, 10)
        await asyncio.sleep(1000)
        assert await dead(graveyard) == 0
        attempts = []
        sub.on("message", lambda m: (attempts.append(m.delivery_attempt), m.ack()))
        await settled()
        assert attempts == [1] * 10


async def test_a_listener_that_left_costs_nothing():
    async with one_attempt() as (topic, sub, graveyard):
        received = []
        sub.on("message", received.append)
        sub.open()
        await settled()
        sub.off("message", received.append)
        await publish(topic, 10)
        await asyncio.sleep(1000)
        assert (await dead(graveyard), received) == (0, [])


async def test_waiting_behind_a_slow_handler_costs_nothing():
    flow, streaming = FlowControl(max_messages=1), Streaming(max_streams=1, high_water_mark=20)
    async with one_attempt(flow_control=flow, streaming=streaming) as (topic, sub, graveyard):
        attempts = []

        async def slow(message):
            await asyncio.sleep(8)
            attempts.append(message.delivery_attempt)
            message.ack()

        sub.on("message", slow)
        sub.open()
        await publish(topic, 20)
        await asyncio.sleep(200)
        assert attempts == [1] * 20
        assert await dead(graveyard) == 0


async def test_waiting_for_a_handler_that_outlives_its_message_costs_the_others_nothing():
    async with one_attempt(flow_control=FlowControl(max_messages=1)) as (topic, sub, graveyard):
        seen = []

        async def handle(message):
            seen.append((message.data, message.delivery_attempt))
            if message.data == b"0":
                await asyncio.sleep(300)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 5)
        await asyncio.sleep(1000)
        assert seen == [(b"%d" % n, 1) for n in range(5)]
        # The one that was handled for too long was seen.
        assert await dead(graveyard) == 1


async def test_waiting_while_paused_costs_nothing():
    flow, streaming = FlowControl(max_messages=1), Streaming(max_streams=1, high_water_mark=9)
    async with one_attempt(flow_control=flow, streaming=streaming) as (topic, sub, graveyard):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 10)
        await settled()
        sub.pause()
        received[0].ack()
        await asyncio.sleep(1000)
        assert await dead(graveyard) == 0
        assert (await sub.describe()).backlog == 9


async def test_waiting_behind_its_key_costs_nothing():
    async with one_attempt() as (topic, sub, graveyard):
        sub.set_options(message_ordering=True)
        attempts = []

        async def slow(message):
            message.modify_ack_deadline(100)
            await asyncio.sleep(50)
            attempts.append((message.data, message.delivery_attempt))
            message.ack()

        sub.on("message", slow)
        sub.open()
        await publish(topic, 5, ordering_key="key")
        await asyncio.sleep(1000)
        assert attempts == [(b"%d" % n, 1) for n in range(5)]
        assert await dead(graveyard) == 0


async def test_a_loop_that_is_slow_or_left_costs_what_it_did_not_see_nothing():
    async with one_attempt() as (topic, sub, graveyard):
        await publish(topic, 60)
        attempts = []
        while len(attempts) < 60:
            async for message in sub:
                attempts.append(message.delivery_attempt)
                message.ack()
                if len(attempts) % 7 == 0:
                    await asyncio.sleep(100)
                    break
                if len(attempts) == 60:
                    break
        assert attempts == [1] * 60
        assert await dead(graveyard) == 0


async def test_closing_costs_what_waits_nothing():
    flow, streaming = FlowControl(max_messages=1), Streaming(max_streams=2, high_water_mark=5)
    async with one_attempt(flow_control=flow, streaming=streaming) as (topic, sub, graveyard):
        attempts = []
        await publish(topic, 10)

        async def slow(message):
            await asyncio.sleep(1)
            attempts.append(message.delivery_attempt)
            message.ack()

        sub.on("message", slow)
        while len(attempts) < 10:
            sub.open()
            await settled()
            await sub.close(nack_waiting=True)
        assert attempts == [1] * 10
        assert await dead(graveyard) == 0


async def test_nobody_is_kept_from_a_message_for_ever():
    """A client that cannot use what it fetched gives it back some time."""
    async with one_attempt() as (topic, sub, graveyard):
        sub.open()
        await publish(topic, 3)
        await settled()
        other, began = [], now()
        sub.pause()
        second = topic._pubsub.subscription("careful")
        second.on("message", lambda m: (other.append((m.delivery_attempt, now() - began)), m.ack()))
        second.open()
        await asyncio.sleep(2 * 3600)
        assert [attempt for attempt, _ in other] == [1] * 3
        assert all(3600 <= waited <= 3700 for _, waited in other)
        assert await dead(graveyard) == 0
