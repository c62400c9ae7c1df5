"""Receiving by `async for`."""

import asyncio
import gc

import pytest

from penstock import DeadLetterPolicy, FlowControl
from penstock.errors import FailedPreconditionError, SubscriptionNotFoundError
from penstock.testing import settled
from tests.support.fakes import FlakyBroker, subscription_on
from tests.support.scenes import orders, publish


async def test_iteration_ends_when_the_subscription_closes():
    async with orders() as (topic, sub):
        seen = []

        async def consume():
            async for message in sub:
                message.ack()
                seen.append(message.id)

        task = asyncio.ensure_future(consume())
        ids = await publish(topic, 5)
        await settled()
        await sub.close()
        await task
        assert seen == ids


async def test_iteration_raises_what_ended_the_stream():
    async with orders() as (_, sub):

        async def consume():
            async for _ in sub:
                pass

        task = asyncio.ensure_future(consume())
        await settled()
        await sub.delete()
        with pytest.raises(SubscriptionNotFoundError):
            await task


async def test_pulls_side_by_side_fetch_no_more_ahead_than_one_would():
    class Distant(FlakyBroker):
        async def pull(self, subscription, **how):
            await asyncio.sleep(1)  # Long enough for all pulls to be asked.
            return await super().pull(subscription, **how)

    async with subscription_on(Distant()) as (topic, sub):
        await publish(topic, 10)
        async for message in sub:
            assert (await sub.describe()).leased == 1
            message.ack()
            break


async def test_who_listens_after_a_loop_was_left_is_not_held_to_the_pace_of_the_loop():
    broker = FlakyBroker()
    async with subscription_on(broker) as (topic, sub):
        await publish(topic, 1)
        async for message in sub:
            message.ack()
            break
        received = []
        sub.on("message", received.append)
        await publish(topic, 100)
        sub.resume()
        await settled()
        assert len(received) == 100
        assert max(broker.batches) == 100


async def test_pausing_inside_a_loop_keeps_back_what_was_fetched_for_it():
    async with orders() as (topic, sub):
        await publish(topic, 10)
        loop = aiter(sub)
        for _ in range(2):
            (await anext(loop)).ack()
        await settled()
        sub.pause()
        assert sub.stream.statistics().waiting > 0
        following = asyncio.ensure_future(anext(loop))
        await settled()
        assert not following.done()
        sub.resume()
        assert (await following).data == b"2"


async def test_leaving_an_iteration_gives_back_what_was_not_seen():
    async with orders() as (topic, sub):
        await publish(topic, 10)
        async for received in sub:
            message = received
            break
        await settled()
        assert (await sub.describe()).leased == 1
        message.ack()
        await settled()
        assert (await sub.describe()).backlog == 9


async def test_leaving_a_loop_costs_what_was_not_seen_no_attempt():
    async with orders() as (topic, _):
        await topic._pubsub.topic("dead").create()
        policy = DeadLetterPolicy(topic="dead", max_delivery_attempts=2)
        careful = await topic.subscription("careful", dead_letter_policy=policy).create()
        await publish(topic, 100)
        attempts = []
        for _ in range(100):
            async for message in careful:
                attempts.append(message.delivery_attempt)
                message.ack()
                break
        assert attempts == [1] * 100
        await settled()
        assert (await careful.describe()).backlog == 0


async def test_a_slow_loop_is_shown_every_message_once():
    async with orders(ack_deadline=10) as (topic, sub):
        await publish(topic, 100)
        seen = []
        async for message in sub:
            await asyncio.sleep(1)
            seen.append((message.data, message.delivery_attempt))
            message.ack()
            if len(seen) == 100:
                break
        assert seen == [(b"%d" % n, 1) for n in range(100)]


async def test_a_fast_loop_fetches_ahead():
    broker = FlakyBroker()
    async with subscription_on(broker) as (topic, sub):
        await publish(topic, 5000)
        count = 0
        async for message in sub:
            message.ack()
            count += 1
            if count == 5000:
                break
        assert max(broker.batches) >= 100


async def test_messages_can_be_collected_before_they_are_acked():
    async with orders(flow_control=FlowControl(max_messages=20)) as (topic, sub):
        await publish(topic, 40)
        taken = []
        async for message in sub:
            taken.append(message)
            if len(taken) == 20:
                for each in taken:
                    each.ack()
                taken.clear()
                if not (await sub.describe()).backlog - 20:
                    break


async def test_a_loop_that_was_replaced_before_it_began_takes_nothing():
    async with orders() as (topic, sub):
        first, second = aiter(sub), aiter(sub)
        await publish(topic, 3)
        with pytest.raises(StopAsyncIteration):
            await anext(first)
        for n in range(3):
            message = await anext(second)
            assert message.data == b"%d" % n
            message.ack()


async def test_listening_and_iterating_exclude_each_other():
    async with orders() as (_, sub):
        sub.on("message", lambda m: m.ack())
        with pytest.raises(FailedPreconditionError, match="not both"):
            async for _ in sub:
                pass


async def test_a_loop_that_was_left_holds_its_stream_until_the_client_closes():
    closed = []
    async with orders() as (topic, _):
        await publish(topic, 1)

        async def take_one():
            handle = topic._pubsub.subscription("billing")
            handle.on("close", lambda: closed.append(True))
            async for message in handle:
                message.ack()
                break

        await take_one()
        gc.collect()
        await asyncio.sleep(100)
    assert closed == [True]


async def test_closing_hands_out_what_was_fetched():
    async with orders() as (topic, sub):
        await publish(topic, 20)
        seen = []

        async def consume():
            async for message in sub:
                await asyncio.sleep(1)
                seen.append(message.data)
                message.ack()

        task = asyncio.ensure_future(consume())
        await asyncio.sleep(7.5)
        report = await sub.close()
        await task
        assert report.clean
        status = await sub.describe()
        assert len(seen) + status.backlog == 20
        assert status.leased == 0
