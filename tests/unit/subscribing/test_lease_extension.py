"""Keeping messages while handlers work, and no longer."""

import asyncio
from dataclasses import replace

import pytest

from penstock import (
    AckResponse,
    LeaseExtension,
    Message,
    PreciseTime,
)
from penstock.message import Settlement, Verb
from penstock.testing import VirtualClock, settled
from tests.support.fakes import FlakyBroker, subscription_on
from tests.support.scenes import now, orders, publish


async def test_leases_are_extended_while_an_async_handler_works_and_no_longer():
    broker = FlakyBroker()
    extension = LeaseExtension(interval=5, jitter=0.2)
    async with subscription_on(broker, ack_deadline=10, lease_extension=extension) as (topic, sub):
        received = []

        async def handle(message):
            received.append(message)
            await asyncio.sleep(100)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 3)
        await asyncio.sleep(99)
        assert len(received) == 3
        extensions = [s for batch in broker.settled for s in batch if s.verb is Verb.EXTEND]
        assert 3 * 99 / 6 - 3 <= len(extensions) <= 3 * 99 / 4 + 3
        await asyncio.sleep(2)
        broker.settled.clear()
        await asyncio.sleep(100)
        assert broker.settled == []
        assert (await sub.describe()).backlog == 0


async def test_extension_stops_at_its_maximum_and_the_message_returns():
    extension = LeaseExtension(interval=5, jitter=0, max_total=30)
    async with orders(ack_deadline=10, lease_extension=extension) as (topic, sub):
        starts = []

        async def handle(message):
            starts.append(now())
            if message.delivery_attempt == 1:
                await asyncio.sleep(1000)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(60)
        assert len(starts) == 2
        assert 30 <= starts[1] - starts[0] <= 40


@pytest.mark.parametrize("ending", ["returns", "raises", "cancelled"])
async def test_extension_ceases_at_once_when_the_handler_ends_unsettled(ending):
    broker = FlakyBroker()
    extension = LeaseExtension(interval=5, jitter=0)
    async with subscription_on(broker, ack_deadline=10, lease_extension=extension) as (topic, sub):
        attempts = []

        async def handle(message):
            attempts.append((message.delivery_attempt, now()))
            if message.delivery_attempt > 1:
                message.ack()
                return
            await asyncio.sleep(12)
            if ending == "raises":
                raise ValueError("boom")
            if ending == "cancelled":
                raise asyncio.CancelledError

        sub.on("message", handle)
        sub.on("error", lambda error: None)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(100)
        [(_, first), (_, second)] = attempts
        # Extended at 5 and 10; the lease then ends at 20. A failure brings it back at 12.
        assert second - first == pytest.approx(20 if ending == "returns" else 12)
        assert sum(s.verb is Verb.EXTEND for batch in broker.settled for s in batch) == 2


async def test_a_lease_lost_at_the_broker_is_let_go_of():
    extension = LeaseExtension(interval=5, jitter=0)
    options = {"enable_exactly_once_delivery": True, "lease_extension": extension}
    async with orders(ack_deadline=10, **options) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 1)
        await settled()
        sub.pause()
        await sub.seek(PreciseTime.from_ns(VirtualClock().time_ns() + 10**12))
        await asyncio.sleep(6)
        assert sub.stream is not None
        assert sub.stream.statistics().messages == 0
        assert await received[0].ack_with_response() is AckResponse.INVALID


async def test_extension_comes_in_time_however_short_the_deadline():
    async with orders(ack_deadline=10, lease_extension=LeaseExtension()) as (topic, sub):
        attempts = []

        async def handle(message):
            attempts.append(message.delivery_attempt)
            await asyncio.sleep(60)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(200)
        assert attempts == [1]


async def test_extension_never_shortens_a_deadline_the_handler_set():
    extension = LeaseExtension(interval=20, jitter=0)
    async with orders(lease_extension=extension) as (topic, sub):
        times = []

        async def handle(message):
            times.append(now())
            if len(times) == 1:
                message.modify_ack_deadline(300)
                await asyncio.sleep(25)
            else:
                message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(1000)
        assert times == pytest.approx([0, 300])


async def test_extension_can_be_switched_off():
    async with orders(ack_deadline=10, lease_extension=LeaseExtension(interval=5)) as (topic, sub):
        received = []
        sub.on("message", received.append)
        sub.set_options(lease_extension=None)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(15)
        assert len(received) == 2


class OnlyRenews(FlakyBroker):
    """Grants ten seconds and no more, however long is asked for."""

    capabilities = replace(FlakyBroker.capabilities, sets_deadlines=False)

    async def settle(self, subscription, settlements):
        renewed = [
            Settlement(s.ack_id, s.verb, 10.0) if s.verb is Verb.EXTEND else s for s in settlements
        ]
        return await super().settle(subscription, renewed)


async def test_a_deadline_longer_than_the_broker_grants_is_kept_by_renewing():
    broker = OnlyRenews()
    async with subscription_on(broker, ack_deadline=10) as (topic, sub):
        received = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 1)
        await settled()
        received[0].modify_ack_deadline(100)
        await asyncio.sleep(95)
        assert len(received) == 1
        await asyncio.sleep(15)
        assert len(received) == 2
        received[1].modify_ack_deadline(100)
        await asyncio.sleep(50)
        received[1].ack()
        await settled()
        broker.settled.clear()
        await asyncio.sleep(100)
        assert broker.settled == []
        assert len(received) == 2


async def test_a_streams_own_deadline_is_kept_the_same_way():
    async with subscription_on(OnlyRenews(), ack_deadline=10) as (topic, sub):
        received = []
        sub.on("message", received.append)
        sub.set_options(ack_deadline=60)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(55)
        assert len(received) == 1
        await asyncio.sleep(20)
        assert len(received) == 2


async def test_leases_longer_than_the_broker_grants_are_extended_in_time():
    extension = LeaseExtension(interval=20, jitter=0)
    async with subscription_on(OnlyRenews(), ack_deadline=10) as (topic, sub):
        attempts = []

        async def handle(message):
            attempts.append(message.delivery_attempt)
            await asyncio.sleep(150)
            message.ack()

        sub.on("message", handle)
        sub.set_options(ack_deadline=61, lease_extension=extension)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(200)
        assert attempts == [1]
        assert (await sub.describe()).backlog == 0


async def test_a_handler_that_returns_leaves_the_deadline_it_set():
    async with subscription_on(OnlyRenews(), ack_deadline=10) as (topic, sub):
        times = []

        async def handle(message):
            times.append(now())
            message.modify_ack_deadline(60)

        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(75)
        assert len(times) == 2
        assert 60 <= times[1] <= 70
