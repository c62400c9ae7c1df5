"""Settlements when the broker fails."""

import asyncio

import pytest

from penstock import AckResponse, Backoff, FlowControl, Message
from penstock.errors import (
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    SubscriptionNotFoundError,
    UnavailableError,
)
from penstock.message import Settlement, Verb
from penstock.testing import eventually, settled
from tests.support.fakes import FlakyBroker, subscription_on
from tests.support.scenes import now, orders, publish


async def test_settlements_are_repeated_through_an_outage():
    broker = FlakyBroker(settle_failures=[UnavailableError("down")] * 5)
    async with subscription_on(broker) as (topic, sub):
        responses, errors = [], []

        async def handle(message):
            responses.append(await message.ack_with_response())

        sub.on("message", handle)
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 20)
        await asyncio.sleep(30)
        assert responses == [AckResponse.SUCCESS] * 20
        assert errors == []
        assert (await sub.describe()).backlog == 0


@pytest.mark.parametrize(
    ("failure", "response"),
    [
        (PermissionDeniedError("no"), AckResponse.PERMISSION_DENIED),
        (InvalidArgumentError("bad"), AckResponse.INVALID),
        (SubscriptionNotFoundError("billing"), AckResponse.FAILED_PRECONDITION),
        (RuntimeError("bug"), AckResponse.OTHER),
    ],
)
async def test_a_settlement_that_cannot_succeed_says_why(failure, response):
    broker = FlakyBroker(settle_failures=[failure])
    async with subscription_on(broker) as (topic, sub):
        responses, errors = [], []

        async def handle(message):
            responses.append(await message.ack_with_response())

        sub.on("message", handle)
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 1)
        await settled()
        assert responses == [response]
        assert errors == [failure]


async def test_a_settlement_is_given_up_when_its_lease_must_have_ended():
    broker = FlakyBroker(settle_failures=[UnavailableError("down")] * 10_000)
    async with subscription_on(broker, ack_deadline=10) as (topic, sub):
        responses = []

        async def handle(message):
            responses.append((await message.ack_with_response(), now()))

        sub.on("message", handle)
        sub.on("error", lambda error: None)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(15)
        response, when = responses[0]
        assert response is AckResponse.OTHER
        assert when <= 11
        broker.settle_failures.clear()


async def test_a_short_answer_from_a_broker_is_an_internal_error():
    class Mute(FlakyBroker):
        async def settle(self, subscription, settlements):
            return (await super().settle(subscription, settlements))[:-1]

    async with subscription_on(Mute(), ack_deadline=1) as (topic, sub):
        errors = []
        sub.on("message", lambda m: m.ack())
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 1)
        await asyncio.sleep(5)
        assert isinstance(errors[0], InternalError)


async def test_errors_of_pulls_that_fail_together_are_one_error():
    broker = FlakyBroker(pull_failures=[UnavailableError("down")] * 5)
    backoff = Backoff(initial=10, maximum=10)
    async with subscription_on(broker, backoff=backoff) as (_, sub):
        errors = []
        sub.on("error", errors.append)
        sub.open()
        await settled()
        assert len(errors) == 1
        assert sub.stream is not None
        assert sub.stream.statistics().failures == 1
        await asyncio.sleep(11)
        assert sub.stream.statistics().pulls == 5
        assert broker.waiting_pulls == 5


async def test_failures_of_pulls_are_forgotten_with_the_first_that_succeeds():
    broker = FlakyBroker(pull_failures=[UnavailableError("down")] * 5)
    async with subscription_on(broker, backoff=Backoff(initial=10, maximum=1000)) as (topic, sub):
        sub.on("error", lambda error: None)
        sub.on("message", lambda message: message.ack())
        sub.open()
        await settled()
        assert sub.stream is not None
        assert sub.stream.statistics().failures == 1
        await asyncio.sleep(11)
        await publish(topic, 1)
        await settled()
        assert sub.stream.statistics().failures == 0


async def test_a_bug_in_an_adapter_does_not_end_the_stream():
    broker = FlakyBroker(pull_failures=[RuntimeError("bug"), KeyError("bug")])
    async with subscription_on(broker) as (topic, sub):
        received, errors = [], []
        sub.on("message", lambda m: (received.append(m), m.ack()))
        sub.on("error", errors.append)
        sub.open()
        await publish(topic, 1)
        await eventually(lambda: received)
        assert errors


async def test_responses_find_their_settlements_whatever_the_batches():
    broker = FlakyBroker()
    flow = FlowControl(max_messages=5000)
    async with subscription_on(broker, enable_exactly_once_delivery=True, flow_control=flow) as (
        topic,
        sub,
    ):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 2500)
        await settled()
        assert len(received) == 2500
        lost = {received[7].id, received[1007].id, received[2400].id}
        for message in received:
            if message.id in lost:
                settlement = Settlement(message.ack_id, Verb.ACK)
                await broker.settle("billing", [settlement])
        responses = await asyncio.gather(*(m.ack_with_response() for m in received))
        refused = {
            m.id
            for m, response in zip(received, responses, strict=True)
            if response is AckResponse.INVALID
        }
        assert refused == lost


async def test_settlements_that_cannot_be_sent_stop_the_pulls():
    broker = FlakyBroker(settle_failures=[UnavailableError("down")] * 10**6)
    async with subscription_on(
        broker, ack_deadline=600, flow_control=FlowControl(max_messages=10)
    ) as (topic, sub):
        received = []
        sub.on("message", lambda m: (received.append(m), m.ack()))
        sub.open()
        await publish(topic, 1000)
        await asyncio.sleep(5)
        assert len(received) <= 50
        broker.settle_failures.clear()
        await eventually(lambda: len(received) == 1000, within=100)


@pytest.mark.parametrize("max_messages", [1, 2, 1000])
async def test_a_long_outage_is_met_with_growing_pauses_whatever_the_window(max_messages):
    class Down(FlakyBroker):
        pulls = 0

        async def pull(self, subscription, **limits):
            self.pulls += 1
            await asyncio.sleep(0.01)
            raise UnavailableError("down")

    broker = Down()
    flow = FlowControl(max_messages=max_messages)
    async with subscription_on(broker, flow_control=flow) as (_, sub):
        errors = []
        sub.on("error", errors.append)
        sub.open()
        await asyncio.sleep(120)
        assert len(errors) < 50
        assert broker.pulls < 250


async def test_settling_again_after_the_subscription_is_gone_still_answers():
    async with orders() as (topic, sub):
        received: list[Message] = []
        stranger = topic._pubsub.subscription("billing")
        stranger.on("message", received.append)
        stranger.on("error", lambda error: None)
        stranger.open()
        await publish(topic, 1)
        await settled()
        await received[0].ack_with_response()
        await sub.delete()
        assert await received[0].ack_with_response() is AckResponse.FAILED_PRECONDITION


async def test_of_the_responses_success_alone_is_true():
    assert [response for response in AckResponse if response] == [AckResponse.SUCCESS]
    async with orders(enable_exactly_once_delivery=True) as (topic, sub):
        said: list[bool] = []

        @sub.on("message")
        async def handle(message):
            said.extend([bool(await message.ack_with_response()) for _ in range(2)])

        sub.open()
        await publish(topic, 1)
        await settled()
        assert said == [True, False]


@pytest.mark.parametrize(
    ("first", "sent"),
    [
        (lambda m: m.ack(), Verb.ACK),
        (lambda m: m.nack(), Verb.NACK),
        (lambda m: m.nack(5), Verb.NACK),
        (lambda m: m.reject(), Verb.REJECT),
        (lambda m: m.modify_ack_deadline(0), Verb.NACK),
    ],
)
async def test_the_first_settlement_is_the_only_one_the_broker_is_told(first, sent):
    broker = FlakyBroker()
    async with subscription_on(broker) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 1)
        await settled()
        message = received[0]
        first(message)
        message.ack()
        message.nack()
        message.nack(3)
        message.reject()
        message.modify_ack_deadline(30)
        assert await message.ack_with_response() is AckResponse.SUCCESS
        await settled()
        told = [s.verb for batch in broker.settled for s in batch if s.ack_id == message.ack_id]
        assert told == [sent]
        assert "settled" in repr(message)


@pytest.mark.parametrize("verb", ["ack_with_response", "nack_with_response"])
async def test_a_settlement_with_response_frees_the_window_before_it_is_answered(verb):
    broker = FlakyBroker()
    async with subscription_on(broker, flow_control=FlowControl(max_messages=1)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 2)
        await settled()
        assert [message.data for message in received] == [b"0"]
        assert sub.stream is not None
        asked = asyncio.ensure_future(getattr(received[0], verb)())
        await asyncio.sleep(0)
        assert sub.stream.statistics().messages == 0
        assert sub.stream.statistics().bytes == 0
        assert not sub.stream.holds(received[0])
        assert await asked is AckResponse.SUCCESS
        await settled()
        assert len(received) >= 2
        sub.pause()
        for message in received:
            message.ack()
        await settled()
        assert sub.stream.statistics().messages == 0


@pytest.mark.parametrize("verb", ["ack_with_response", "nack_with_response"])
async def test_a_settlement_whose_caller_is_cancelled_is_made_all_the_same(verb):
    broker = FlakyBroker()
    async with subscription_on(broker) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 1)
        await settled()
        asked = asyncio.ensure_future(getattr(received[0], verb)())
        await asyncio.sleep(0)
        asked.cancel()
        await settled()
        assert asked.cancelled()
        told = [s.verb.value for batch in broker.settled for s in batch]
        assert told == [verb.partition("_")[0]]
