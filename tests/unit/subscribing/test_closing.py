"""Closing: in every mode, at every moment, more than once."""

import asyncio

import pytest

from penstock import (
    AckResponse,
    FlowControl,
    LeaseExtension,
    Message,
    MessageStream,
    PubSub,
    RetryPolicy,
    Streaming,
)
from penstock.errors import ClosedError, SubscriptionNotFoundError, UnavailableError
from penstock.testing import VirtualClock, settled
from tests.support.fakes import FlakyBroker, subscription_on
from tests.support.scenes import cancel_all_others, now, orders, publish


async def test_close_with_a_deadline_cancels_nacks_and_reports():
    async with orders() as (topic, sub):
        cancelled = []

        async def handle(message):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cancelled.append(message.id)
                raise

        errors = []
        sub.on("error", errors.append)
        sub.on("message", handle)
        sub.open()
        ids = await publish(topic, 3)
        await settled()
        began = now()
        report = await sub.close(timeout=5)
        assert now() - began == pytest.approx(5)
        assert sorted(report.unfinished) == sorted(report.cancelled) == sorted(cancelled) == ids
        assert not report.clean
        assert errors == []
        status = await sub.describe()
        assert (status.backlog, status.leased) == (3, 0)


async def test_close_can_give_back_what_has_not_started():
    async with orders(flow_control=FlowControl(max_messages=2)) as (topic, sub):
        sub.set_options(streaming=Streaming(max_streams=1, high_water_mark=4))
        finished = []

        async def handle(message):
            await asyncio.sleep(10)
            finished.append(message.id)
            message.ack()

        sub.on("message", handle)
        sub.open()
        ids = await publish(topic, 10)
        await settled()
        report = await sub.close(nack_waiting=True)
        assert finished == ids[:2]
        assert report.given_back == tuple(ids[2:6])
        assert report.clean
        status = await sub.describe()
        assert (status.backlog, status.leased) == (8, 0)


async def test_close_lets_what_was_fetched_finish_by_default():
    async with orders(flow_control=FlowControl(max_messages=2)) as (topic, sub):
        sub.set_options(streaming=Streaming(max_streams=1, high_water_mark=4))
        finished = []

        async def handle(message):
            await asyncio.sleep(1)
            finished.append(message.id)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 10)
        await settled()
        report = await sub.close()
        assert len(finished) == 6
        assert report == type(report)()


async def test_close_while_paused_gives_back_what_waits():
    async with orders(flow_control=FlowControl(max_messages=1)) as (topic, sub):
        sub.set_options(streaming=Streaming(max_streams=1, high_water_mark=1))
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        ids = await publish(topic, 2)
        await settled()
        sub.pause()
        received[0].ack()
        report = await sub.close()
        assert report.given_back == (ids[1],)


def _pause(sub, handle):
    sub.stream.pause()


def _stop_listening(sub, handle):
    sub.off("message", handle)


@pytest.mark.parametrize("stop_taking", [_pause, _stop_listening])
async def test_what_nobody_will_take_any_more_is_given_back_while_closing_waits(stop_taking):
    async with orders(flow_control=FlowControl(max_messages=1)) as (topic, sub):
        sub.set_options(streaming=Streaming(max_streams=1, high_water_mark=5))

        async def handle(message):
            await asyncio.sleep(1)
            message.ack()

        sub.on("message", handle)
        sub.open()
        ids = await publish(topic, 5)
        await settled()
        closing = asyncio.create_task(sub.close())
        await settled()
        stop_taking(sub, handle)
        report = await closing
        assert now() == pytest.approx(1)
        assert report.clean
        assert report.given_back == tuple(ids[1:])


async def test_a_handler_that_goes_on_after_its_ack_is_waited_for():
    async with orders() as (topic, sub):
        finished = []

        async def handle(message):
            message.ack()
            await asyncio.sleep(20)
            finished.append(message)

        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await settled()
        assert (await sub.close()).clean
        assert finished


async def test_a_handler_that_never_ends_cannot_hold_up_close_for_ever():
    async with orders(ack_deadline=10) as (topic, sub):

        async def handle(message):
            message.ack()
            while True:
                try:
                    await asyncio.sleep(7)
                except asyncio.CancelledError:
                    if now() > 100:
                        raise

        sub.on("message", handle)
        sub.open()
        [message_id] = await publish(topic, 1)
        await settled()
        report = await sub.close()
        assert now() <= 20
        assert report.cancelled == (message_id,)
        assert report.unfinished == ()
        await asyncio.sleep(100)
        cancel_all_others()


async def test_a_second_close_with_a_shorter_deadline_hurries_the_first():
    async with orders() as (topic, sub):

        async def handle(message):
            await asyncio.sleep(1000)

        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await settled()
        first = asyncio.ensure_future(sub.close())
        await asyncio.sleep(1)
        second = await sub.close(timeout=2)
        assert now() == pytest.approx(3)
        assert await first == second


async def test_cancelling_the_caller_of_close_does_not_cancel_the_closing():
    async with orders() as (topic, sub):
        closed, finished = [], []

        async def handle(message):
            await asyncio.sleep(10)
            message.ack()
            finished.append(message)

        sub.on("close", lambda: closed.append(True))
        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await settled()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sub.close(), 1)
        assert not closed
        await asyncio.sleep(10)
        assert finished
        assert closed == [True]


async def test_closing_what_was_never_opened_is_harmless():
    async with orders() as (_, sub):
        assert (await sub.close()).clean
        stream = MessageStream(sub)
        assert (await stream.stop()).clean


async def test_a_closed_subscription_can_be_opened_again():
    async with orders() as (topic, sub):
        received = []
        sub.on("message", lambda m: (received.append(m), m.ack()))
        for _ in range(3):
            sub.open()
            await publish(topic, 1)
            await settled()
            await sub.close()
        assert len(received) == 3


async def test_a_stopped_stream_cannot_start_again():
    async with orders() as (_, sub):
        stream = MessageStream(sub)
        stream.start()
        await stream.stop()
        with pytest.raises(ClosedError, match="billing"):
            stream.start()


async def test_settling_after_close_is_an_error_not_a_silent_loss():
    async with orders() as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 1)
        await settled()
        await sub.close(timeout=0)
        [message] = received
        for verb in (message.ack, message.nack, message.reject):
            with pytest.raises(ClosedError, match=r"'billing' is closed.*-1'") as caught:
                verb()
            assert caught.value.code == 9
        with pytest.raises(ClosedError):
            message.modify_ack_deadline(10)
        assert await message.ack_with_response() is AckResponse.FAILED_PRECONDITION
        status = await sub.describe()
        assert (status.backlog, status.leased) == (1, 0)


async def test_a_closed_client_refuses_everything():
    pubsub = PubSub(clock=VirtualClock())
    topic = await pubsub.topic("orders").create()
    sub = await topic.subscription("billing").create()
    await pubsub.aclose()
    await pubsub.aclose()
    with pytest.raises(ClosedError):
        pubsub.topic("orders")
    with pytest.raises(ClosedError):
        await topic.publish_message(b"x")
    with pytest.raises(ClosedError):
        await sub.describe()
    with pytest.raises(ClosedError):
        async for _ in sub:
            pass


async def test_closing_the_client_closes_open_subscriptions():
    closed = []
    async with orders() as (topic, sub):
        sub.on("close", lambda: closed.append(True))

        async def handle(message):
            await asyncio.sleep(5)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 3)
        await settled()
    assert closed == [True]


async def test_nothing_is_left_running_after_the_client_is_closed():
    async with orders() as (topic, sub):
        sub.on("message", lambda m: m.ack())
        sub.open()
        await publish(topic, 10)
        await settled()
    await settled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_handler_may_close_its_own_client():
    pubsub = PubSub(clock=VirtualClock())
    topic = await pubsub.topic("orders").create()
    sub = await topic.subscription("billing").create()

    async def handle(message):
        message.ack()
        await pubsub.aclose()

    sub.on("message", handle)
    sub.open()
    await publish(topic, 1)
    await settled()
    assert now() == 0
    with pytest.raises(ClosedError):
        await topic.describe()


@pytest.mark.parametrize("acks_first", [True, False])
async def test_a_handler_may_close_its_own_subscription(acks_first):
    async with orders(lease_extension=LeaseExtension()) as (topic, sub):
        reports = []

        async def handle(message):
            if acks_first:
                message.ack()
            reports.append(await sub.close())

        sub.on("message", handle)
        sub.open()
        [message_id] = await publish(topic, 1)
        await settled()
        await asyncio.sleep(1)
        assert now() == 1
        [report] = reports
        assert report.unfinished == (() if acks_first else (message_id,))
        assert report.cancelled == ()
        assert (await sub.describe()).backlog == (0 if acks_first else 1)


async def test_a_handler_gets_its_time_after_a_late_ack():
    async with orders(lease_extension=LeaseExtension()) as (topic, sub):
        cleaned = []

        async def handle(message):
            await asyncio.sleep(100)
            message.ack()
            await asyncio.sleep(30)
            cleaned.append(message)

        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        await settled()
        assert (await sub.close()).clean
        assert cleaned


async def test_closing_ends_every_stream_of_the_subscription():
    async with orders() as (topic, sub):
        finished = []

        async def handle(message):
            await asyncio.sleep(5)
            finished.append(message)
            message.ack()

        sub.on("message", handle)
        stream = MessageStream(sub)
        stream.start()
        await publish(topic, 2)
        await settled()
        assert (await sub.close()).clean
        assert len(finished) == 2
        assert not stream.active


async def test_a_subscription_can_be_opened_again_from_its_error_listener():
    async with orders() as (topic, sub):
        received = []

        @sub.on("error")
        async def reopen(error):
            if not isinstance(error, SubscriptionNotFoundError):
                return
            await sub.create()
            sub.open()

        sub.on("message", lambda m: (received.append(m), m.ack()))
        sub.open()
        await settled()
        await sub.delete()
        await settled()
        await publish(topic, 1)
        await settled()
        assert len(received) == 1


async def test_cancelling_the_caller_of_aclose_does_not_leave_the_client_open():
    pubsub = PubSub(clock=VirtualClock())
    topic = await pubsub.topic("orders").create()
    sub = await topic.subscription("billing").create()
    acked = []

    async def handle(message):
        await asyncio.sleep(30)
        message.ack()
        acked.append(message)

    sub.on("message", handle)
    sub.open()
    await publish(topic, 1)
    await settled()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pubsub.aclose(), 1)
    await asyncio.sleep(60)
    assert acked
    with pytest.raises(ClosedError):
        await topic.describe()


async def test_unsent_settlements_are_counted_in_the_report():
    broker = FlakyBroker()
    async with subscription_on(broker) as (topic, sub):
        received = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 500)
        await settled()
        broker.settle_failures = [UnavailableError("down")] * 10**6
        for message in received:
            message.ack()
        report = await sub.close(timeout=1)
        assert report.unsent == 500


async def test_closing_the_client_waits_for_async_listeners_of_close():
    heard = []
    async with orders() as (_, sub):

        @sub.on("close")
        async def later():
            await asyncio.sleep(1)
            heard.append(True)

        sub.open()
    assert heard == [True]


async def test_waiting_for_the_end_ends_when_somebody_closes():
    async with orders() as (topic, sub):
        await sub.wait_closed()  # Not open: there is nothing to wait for.
        finished = []

        async def handle(message):
            await asyncio.sleep(10)
            finished.append(message)
            message.ack()

        sub.on("message", handle)
        sub.open()
        await publish(topic, 1)
        waiting = [asyncio.ensure_future(sub.wait_closed()) for _ in range(2)]
        await asyncio.sleep(5)
        waiting[1].cancel()
        await settled()
        assert sub.is_open
        assert not waiting[0].done()
        await sub.close()
        await waiting[0]
        assert finished
        await sub.wait_closed()


async def test_waiting_for_the_end_raises_what_ended_the_stream():
    async with orders() as (_, sub):
        sub.on("message", lambda m: m.ack())
        sub.open()
        waiting = asyncio.ensure_future(sub.wait_closed())
        await settled()
        await sub.delete()
        with pytest.raises(SubscriptionNotFoundError, match="billing"):
            await waiting
        assert not sub.is_open
        with pytest.raises(SubscriptionNotFoundError):
            await sub.wait_closed()
        await sub.create()
        sub.open()
        await sub.close()
        await sub.wait_closed()


async def test_what_is_taken_from_its_handler_comes_back_at_once_whatever_the_retry_policy():
    policy = RetryPolicy(minimum_backoff=100, maximum_backoff=600)
    async with orders(retry_policy=policy) as (topic, sub):
        sub.on("message", lambda message: None)
        sub.open()
        await publish(topic, 1)
        await settled()
        await sub.close(timeout=0)
        began = now()
        async for message in topic.subscription("billing"):
            message.ack()
            break
        assert now() == began


@pytest.mark.parametrize("times", [1, 2])
async def test_whoever_cancels_all_tasks_while_it_closes_leaves_what_is_in_hand_to_others(times):
    """As `asyncio.run` does when the program is interrupted while it waits for its handlers."""
    async with orders() as (topic, sub):

        async def handle(message):
            await asyncio.sleep(1000)

        closed = []
        sub.on("message", handle)
        sub.on("close", lambda: closed.append(now()))
        sub.open()
        await publish(topic, 3)
        await settled()
        closing = asyncio.ensure_future(sub.close())
        for _ in range(times):
            await asyncio.sleep(1)
            cancel_all_others()
        await settled()
        assert closing.cancelled() and closed == [1]
        assert (await sub.describe()).leased == 0


@pytest.mark.parametrize("turns", range(1, 6))
@pytest.mark.parametrize("what", ["the subscription", "the client"])
async def test_what_is_in_hand_goes_back_whenever_all_tasks_are_cancelled(what, turns):
    broker = FlakyBroker()
    pubsub = PubSub(broker=broker, clock=VirtualClock())
    topic = await pubsub.topic("orders").create()
    sub = await topic.subscription("billing").create()
    sub.on("message", lambda message: None)
    sub.open()
    await publish(topic, 1)
    await settled()
    close = sub.close if what == "the subscription" else pubsub.aclose
    closing = asyncio.ensure_future(close())
    for _ in range(turns):
        await asyncio.sleep(0)
    cancel_all_others()
    await asyncio.sleep(1)
    assert closing.done()
    assert (await broker.admin.describe_subscription("billing")).leased == 0
    await sub.close()


async def test_closing_that_is_cancelled_waits_for_no_handler_that_will_not_end():
    async with orders(ack_deadline=600) as (topic, sub):

        async def handle(message):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                await asyncio.sleep(1000)

        closed = []
        sub.on("message", handle)
        sub.on("close", lambda: closed.append(now()))
        sub.open()
        await publish(topic, 1)
        await settled()
        closing = asyncio.ensure_future(sub.close())
        await settled()
        cancel_all_others()
        await asyncio.sleep(10)
        assert closing.cancelled() and len(closed) == 1
        assert (await sub.describe()).leased == 0
