"""A process that stood still for longer than messages are lent: others may have them by now."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from penstock import PubSub
from penstock.brokers.memory import MemoryBroker
from penstock.testing import VirtualClock, settled
from tests.support.scenes import publish


class StandsStill(VirtualClock):
    """Time that passes while nothing runs."""

    still = 0.0

    def monotonic(self):
        return super().monotonic() + self.still


@asynccontextmanager
async def lent_for_ten_seconds():
    clock = StandsStill()
    async with PubSub(broker=MemoryBroker(clock), clock=clock) as pubsub:
        topic = await pubsub.topic("orders").create()
        sub = await topic.subscription("billing", ack_deadline=10).create()
        yield clock, topic, sub
        await sub.close()


async def test_what_expired_before_its_handler_took_a_step_is_not_begun():
    async with lent_for_ten_seconds() as (clock, topic, sub):
        called, begun = [], []

        async def work(message):
            begun.append(message.delivery_attempt)
            message.ack()

        def handle(message):
            called.append(message.delivery_attempt)
            clock.still = 30
            return work(message)

        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(20)
        assert (called, begun) == ([1, 2], [2])


async def test_what_expired_while_it_waited_to_be_seen_is_neither_renewed_nor_handed_over():
    async with lent_for_ten_seconds() as (clock, topic, sub):
        sub.open()
        await publish(topic, 1)
        await settled()
        clock.still = 30
        attempts = []
        sub.on("message", lambda m: (attempts.append(m.delivery_attempt), m.ack()))
        await asyncio.sleep(20)
        assert attempts == [2]


async def test_handlers_that_take_their_time_leave_others_theirs():
    async with lent_for_ten_seconds() as (clock, topic, sub):
        handled, between = [], []

        def handle(message):
            clock.still += 0.02
            handled.append(message.id)
            message.ack()
            if len(handled) == 1:
                asyncio.get_running_loop().call_soon(lambda: between.append(len(handled)))

        await publish(topic, 30)
        sub.on("message", handle)
        sub.open()
        await asyncio.sleep(5)
        assert len(handled) == 30
        assert between == [3]


@pytest.mark.parametrize("blocks", range(1, 8))
async def test_what_expired_while_another_handler_blocked_is_not_handed_over(blocks):
    async with lent_for_ten_seconds() as (clock, topic, sub):
        attempts = []

        def handle(message):
            attempts.append(message.delivery_attempt)
            message.ack()
            if len(attempts) == blocks:
                clock.still = 30

        await publish(topic, 8)
        sub.on("message", handle)
        sub.open()
        await asyncio.sleep(20)
        assert attempts == [1] * blocks + [2] * (8 - blocks)
