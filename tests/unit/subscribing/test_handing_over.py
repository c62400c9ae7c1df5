"""Brokers that hand over what comes before a pull returns."""

import asyncio

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
