"""The subscriber's specification: its behaviour requirements (BR) and acceptance criteria (AC).

Times are the specification's own; they pass virtually.
"""

import asyncio
from itertools import pairwise

import pytest

from penstock import FlowControl, Message, MessageStream, Streaming, SubscriberOptions
from penstock.errors import SubscriptionNotFoundError, UnavailableError
from penstock.testing import eventually, settled
from tests.support.fakes import FlakyBroker, subscription_on
from tests.support.scenes import orders, publish


async def test_ac_001_basic_streaming_pull():
    async with orders() as (topic, sub):
        received = []

        @sub.on("message")
        def handle(message):
            received.append(message)
            message.ack()

        sub.open()
        for text in (b"msg1", b"msg2", b"msg3"):
            await topic.publish_message(data=text)
        await asyncio.sleep(0.05)
        assert [m.data for m in received] == [b"msg1", b"msg2", b"msg3"]
        await sub.close()


async def test_ac_002_flow_control_max_messages():
    async with orders(flow_control=FlowControl(max_messages=2)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 5)
        await asyncio.sleep(0.05)
        assert len(received) == 2
        received[0].ack()
        await asyncio.sleep(0.05)
        assert len(received) == 3


async def test_ac_003_flow_control_max_bytes():
    async with orders(flow_control=FlowControl(max_bytes=1024)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        for _ in range(3):
            await topic.publish_message(data=bytes(512))
        await asyncio.sleep(0.05)
        assert len(received) == 2
        received[0].ack()
        await asyncio.sleep(0.05)
        assert len(received) == 3


async def test_ac_004_ack_deadline_redelivery():
    async with orders(ack_deadline=1) as (topic, sub):
        received: list[Message] = []

        def handle(message):
            received.append(message)
            if len(received) > 1:
                message.ack()

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(0.05)
        assert len(received) == 1
        await asyncio.sleep(1.1)
        assert len(received) == 2
        assert received[0].id == received[1].id
        await asyncio.sleep(10)
        assert len(received) == 2


async def test_ac_005_message_ordering_sequential_delivery():
    async with orders(message_ordering=True) as (topic, sub):
        order, times = [], []
        loop = asyncio.get_running_loop()

        async def handle(message):
            began = loop.time()
            order.append(message.data)
            await asyncio.sleep(0.05)
            times.append((began, loop.time()))
            message.ack()

        sub.on("message", handle)
        sub.open()
        for text in (b"first", b"second", b"third"):
            await topic.publish_message(data=text, ordering_key="user-123")
        await asyncio.sleep(0.2)
        assert order == [b"first", b"second", b"third"]
        for (_, ended), (began, _) in pairwise(times):
            assert began >= ended


async def test_ac_006_pause_and_resume():
    async with orders() as (topic, sub):
        received = []

        def handle(message):
            received.append(message)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"msg1")
        await asyncio.sleep(0.05)
        assert len(received) == 1
        sub.pause()
        await topic.publish_message(data=b"msg2")
        await asyncio.sleep(0.05)
        assert len(received) == 1
        sub.resume()
        await asyncio.sleep(0.05)
        assert len(received) == 2


async def test_ac_007_stop_waits_for_in_flight():
    async with orders() as (topic, sub):
        complete = False

        async def handle(message):
            nonlocal complete
            await asyncio.sleep(0.1)
            complete = True
            message.ack()

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(0.02)
        report = await sub.close()
        assert complete
        assert report.clean


async def test_ac_008_error_event_on_failure():
    async with orders() as (topic, sub):
        errors: list[Exception] = []
        sub.on("error", errors.append)
        sub.open()
        await topic.delete()
        await asyncio.sleep(0.1)
        [error] = errors
        assert error.code == 5
        assert "'orders'" in str(error)


async def test_ac_009_multiple_concurrent_messages():
    async with orders(flow_control=FlowControl(max_messages=10)) as (topic, sub):
        received: list[Message] = []
        loop = asyncio.get_running_loop()

        def handle(message):
            received.append(message)
            loop.call_later(0.1, message.ack)

        sub.on("message", handle)
        sub.open()
        await publish(topic, 10)
        await asyncio.sleep(0.05)
        assert len(received) == 10
        await asyncio.sleep(0.1)


async def test_ac_010_allow_excess_messages():
    flow = FlowControl(max_messages=5, allow_excess_messages=True)
    async with orders(flow_control=flow) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        await publish(topic, 40)
        sub.open()
        await asyncio.sleep(0.05)
        assert 5 <= len(received) < 40


async def test_br_001_start_emits_messages_as_they_arrive_within_flow_control():
    async with orders() as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        stream = MessageStream(sub, SubscriberOptions(flow_control=FlowControl(max_messages=3)))
        stream.start()
        stream.start()
        await publish(topic, 5)
        await settled()
        assert len(received) == 3
        assert stream.statistics().messages == 3
        await stream.stop(timeout=0)


async def test_br_002_pulling_resumes_when_the_count_drops_below_the_limit():
    async with orders(flow_control=FlowControl(max_messages=100)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 150)
        await settled()
        assert len(received) == 100
        received[17].nack()
        await settled()
        assert len(received) == 101


async def test_br_003_pulling_stops_at_the_byte_limit_and_resumes_below_it():
    async with orders(flow_control=FlowControl(max_bytes=1000)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        for _ in range(10):
            await topic.publish_message(bytes(600))
        await settled()
        assert len(received) == 2  # 600 is below the limit, so one more was pulled
        received[0].ack()
        received[1].ack()
        await settled()
        assert len(received) == 4


async def test_br_004_excess_ends_with_the_batch_then_waits_for_room():
    flow = FlowControl(max_messages=5, allow_excess_messages=True)
    async with orders(flow_control=flow, streaming=Streaming(max_streams=1)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        await publish(topic, 20)
        sub.open()
        await settled()
        assert len(received) == 5
        received[0].ack()
        await settled()
        assert len(received) == 10  # one free place let a whole batch of five in
        received[1].ack()
        received[2].ack()
        await settled()
        assert len(received) == 10  # seven in flight, above the limit of five


async def test_br_005_an_expired_lease_frees_its_place_and_the_message_returns():
    async with orders(ack_deadline=2, flow_control=FlowControl(max_messages=1)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(1.9)
        assert len(received) == 1
        await asyncio.sleep(0.2)
        assert [m.delivery_attempt for m in received] == [1, 2]
        received[1].ack()


async def test_br_006_different_keys_are_concurrent():
    async with orders(message_ordering=True) as (topic, sub):
        running: set[str | None] = set()
        most = 0

        async def handle(message):
            nonlocal most
            assert message.ordering_key not in running
            running.add(message.ordering_key)
            most = max(most, len(running))
            await asyncio.sleep(1)
            running.discard(message.ordering_key)
            message.ack()

        sub.on("message", handle)
        sub.open()
        for n in range(20):
            await topic.publish_message(b"x", ordering_key=f"key-{n % 4}")
        await asyncio.sleep(5.5)
        assert most == 4
        assert (await sub.describe()).backlog == 0


async def test_br_007_leases_keep_running_while_paused():
    async with orders(ack_deadline=5) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 1)
        await settled()
        sub.pause()
        await asyncio.sleep(6)
        assert len(received) == 1
        assert sub.stream is not None
        assert sub.stream.statistics().messages == 0
        sub.resume()
        await settled()
        assert [m.delivery_attempt for m in received] == [1, 2]


async def test_br_008_stop_ends_at_the_deadline_of_what_is_never_settled_and_emits_close():
    async with orders(ack_deadline=30) as (topic, sub):
        closed = []
        sub.on("close", lambda: closed.append(True))
        sub.on("message", lambda message: None)
        sub.open()
        [message_id] = await publish(topic, 1)
        await asyncio.sleep(10)
        before = asyncio.get_running_loop().time()
        report = await sub.close()
        assert asyncio.get_running_loop().time() - before == pytest.approx(20)
        assert report.expired == (message_id,)
        assert not report.clean
        assert closed == [True]
        await sub.close()
        assert closed == [True]


async def test_br_009_a_passing_error_is_emitted_and_retried_with_backoff():
    broker = FlakyBroker(pull_failures=[UnavailableError(f"outage {n}") for n in range(6)])
    async with subscription_on(broker) as (topic, sub):
        received, errors = [], []
        sub.on("message", lambda m: (received.append(m), m.ack()))
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 3)
        await eventually(lambda: len(received) == 3, within=60)
        assert 1 <= len(errors) <= 6
        assert all(isinstance(error, UnavailableError) for error in errors)
        assert sub.is_open


async def test_br_009_a_fatal_error_is_emitted_once_and_stops_the_stream():
    async with orders() as (_, sub):
        errors, closed = [], []
        sub.on("error", errors.append)
        sub.on("close", lambda: closed.append(True))
        sub.open()
        await settled()
        await sub.delete()
        await settled()
        [error] = errors
        assert isinstance(error, SubscriptionNotFoundError)
        assert error.code == 5
        assert str(error).startswith("Subscription not found")
        assert closed == [True]
        assert not sub.is_open


async def test_br_010_messages_are_spread_over_n_pulls():
    broker = FlakyBroker()
    async with subscription_on(
        broker, streaming=Streaming(max_streams=4), flow_control=FlowControl(max_messages=8)
    ) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await settled()
        assert broker.waiting_pulls == 4
        await publish(topic, 8)
        await settled()
        assert len(received) == 8
        assert broker.batches == [2, 2, 2, 2]
