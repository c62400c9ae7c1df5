"""Brokers that hand over what comes before a pull returns."""

import asyncio

import pytest

from penstock import FlowControl, Streaming
from penstock.errors import FlowControlError
from penstock.testing import settled
from tests.support.fakes import FlakyBroker, subscription_on
from tests.support.scenes import publish


class HandsOver(FlakyBroker):
    """Its pulls return a second after what they brought was handed over; `before` is called just
    before that."""

    handed = 0

    def before(self):
        pass

    async def pull_to(self, take, subscription, **limits):
        pulled = await self.pull(subscription, **limits)
        if pulled:
            self.before()
            self.handed += len(pulled)
            take(pulled)
            await asyncio.sleep(1)
        return ()


async def test_handlers_are_called_as_soon_as_something_comes_and_each_message_once():
    broker = HandsOver()
    async with subscription_on(broker) as (topic, sub):
        received = []
        sub.on("message", lambda m: (received.append(m.data), m.ack()))
        sub.open()
        await settled()
        await publish(topic, 3)
        await settled()
        assert len(received) == broker.handed == 3
        await asyncio.sleep(5)
        assert len(received) == 3
        status = await sub.describe()
        assert (status.backlog, status.leased) == (0, 0)


async def test_what_is_handed_over_when_the_stream_was_paused_is_given_back():
    broker = HandsOver()
    async with subscription_on(broker) as (topic, sub):
        received = []
        sub.on("message", lambda m: (received.append(m.delivery_attempt), m.ack()))
        sub.open()
        await settled()
        broker.before = sub.pause
        await publish(topic, 1)
        await settled()
        assert broker.handed == 1
        assert received == []
        assert (await sub.describe()).backlog == 1
        broker.before = lambda: None
        sub.resume()
        await asyncio.sleep(5)
        assert len(received) == 1


async def test_what_handlers_have_is_theirs_when_the_pull_that_brought_it_is_cancelled():
    broker = HandsOver()
    async with subscription_on(broker) as (topic, sub):
        messages = []
        sub.on("message", messages.append)
        sub.open()
        await settled()
        await publish(topic, 1)
        await settled()
        sub.pause()
        await settled()
        assert (await sub.describe()).leased == 1
        messages[0].ack()
        await settled()
        status = await sub.describe()
        assert (status.backlog, status.leased) == (0, 0)


class HandsOverInParts(FlakyBroker):
    """What its pulls bring is handed over one by one, a second after the other, but for as many of
    the last as `kept` says, which they return."""

    kept = 0

    async def pull_to(self, take, subscription, **limits):
        pulled = await self.pull(subscription, **limits)
        handed = len(pulled) - self.kept
        for delivery in pulled[:handed]:
            take([delivery])
            await asyncio.sleep(1)
        return pulled[handed:] if handed > 0 else pulled


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_what_comes_in_parts_is_handled_as_it_comes_and_all_of_it(kept):
    broker = HandsOverInParts()
    broker.kept = kept
    async with subscription_on(broker, streaming=Streaming(max_streams=1)) as (topic, sub):
        await publish(topic, 4)
        clock = asyncio.get_running_loop().time
        began, received = clock(), []
        sub.on("message", lambda m: (received.append(round(clock() - began)), m.ack()))
        sub.open()
        await asyncio.sleep(10)
        first = list(range(4 - kept))
        assert received == [*first, *[4 - kept] * kept]
        status = await sub.describe()
        assert (status.backlog, status.leased) == (0, 0)


async def test_whoever_takes_one_after_the_other_gets_what_comes_in_parts_as_it_comes():
    async with subscription_on(HandsOverInParts(), streaming=Streaming(max_streams=1)) as (
        topic,
        sub,
    ):
        await publish(topic, 4)
        clock = asyncio.get_running_loop().time
        began, received = clock(), []
        async for message in sub:
            received.append(round(clock() - began))
            message.ack()
            if len(received) == 4:
                break
        assert received == [0, 1, 2, 3]


async def test_the_window_holds_while_what_was_asked_for_comes_in_parts():
    async with subscription_on(
        HandsOverInParts(),
        flow_control=FlowControl(max_messages=10),
        streaming=Streaming(max_streams=3),
    ) as (topic, sub):
        received = []
        sub.on("message", received.append)
        await publish(topic, 40)
        sub.open()
        for _ in range(20):
            await asyncio.sleep(0.5)
            assert sub.stream is not None
            window = sub.stream.deliveries.window
            assert window.messages + window.reserved <= 10
            assert window.messages == len(received)
        assert len(received) == 10
        for message in received:
            message.ack()
        await asyncio.sleep(10)
        assert len(received) == 20
        sub.pause()
        await settled()
        assert (window.reserved, window.reserved_bytes) == (0, 0)


async def test_a_broker_that_hands_over_more_than_was_asked_for_gets_the_rest_back():
    class Generous(FlakyBroker):
        async def pull_to(self, take, subscription, **limits):
            for _ in range(2):
                take(await self.pull(subscription, **{**limits, "max_messages": 2}))
            return ()

    errors, received = [], []
    async with subscription_on(
        Generous(), flow_control=FlowControl(max_messages=3), streaming=Streaming(max_streams=1)
    ) as (topic, sub):
        sub.on("message", received.append)
        sub.on("error", errors.append)
        await publish(topic, 4)
        sub.open()
        await settled()
        assert len(received) == 3
        [error] = errors
        assert isinstance(error, FlowControlError)
        assert "more than the 3 that were asked" in str(error)
        assert "1 were given back" in str(error)
        status = await sub.describe()
        assert (status.backlog, status.leased) == (4, 3), "the fourth was given back"
