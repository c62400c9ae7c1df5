"""After closing or pausing nothing is pulled, whatever a broker makes of a cancellation."""

import asyncio

from penstock import Draft
from penstock.errors import UnavailableError
from penstock.testing import settled
from tests.support.fakes import FlakyBroker, subscription_on
from tests.support.scenes import cancel_all_others, now, publish


class SwallowsCancellation(FlakyBroker):
    """Python 3.11's `wait_for` does it when the answer and the cancellation come together."""

    answers_late = 0
    arrives_then: tuple[Draft, ...] = ()

    async def pull(self, subscription, *, max_messages, max_bytes, wait):
        try:
            return await super().pull(
                subscription, max_messages=max_messages, max_bytes=max_bytes, wait=wait
            )
        except asyncio.CancelledError:
            self.answers_late += 1
            arrived, self.arrives_then = self.arrives_then, ()
            await super().publish("orders", arrived)
            return await super().pull(
                subscription, max_messages=max_messages, max_bytes=max_bytes, wait=0
            )


async def test_nothing_is_pulled_or_handed_over_after_close():
    broker = SwallowsCancellation()
    async with subscription_on(broker) as (topic, sub):
        received = []
        sub.on("message", received.append)
        sub.open()
        await settled()
        assert broker.waiting_pulls == 5
        await sub.close()
        assert (broker.answers_late, broker.waiting_pulls) == (5, 0)
        pulls = len(broker.batches)
        await publish(topic, 3)
        await asyncio.sleep(100)
        assert received == []
        assert len(broker.batches) == pulls
        assert (await sub.describe()).leased == 0


async def test_closing_waits_for_pulls_that_take_a_while_to_end_and_gives_back_what_they_bring():
    class Slow(SwallowsCancellation):
        async def pull(self, subscription, **limits):
            pulled = await super().pull(subscription, **limits)
            await asyncio.sleep(1)
            return pulled

    broker = Slow()
    async with subscription_on(broker) as (_, sub):
        sub.on("message", lambda message: message.ack())
        sub.open()
        await settled()
        broker.arrives_then = (Draft(b"1"), Draft(b"2"), Draft(b"3"))
        assert (await sub.close()).unsent == 0
        status = await sub.describe()
        assert (status.backlog, status.leased) == (3, 0)


async def test_what_a_pull_brings_while_it_is_cancelled_is_given_back():
    broker = SwallowsCancellation()
    async with subscription_on(broker) as (_, sub):
        received = []
        sub.on("message", lambda m: (received.append(m.delivery_attempt), m.ack()))
        sub.open()
        await settled()
        broker.arrives_then = (Draft(b"1"), Draft(b"2"), Draft(b"3"))
        await sub.close()
        assert broker.answers_late == 5
        assert sum(broker.batches) == 3
        assert received == []
        status = await sub.describe()
        assert (status.backlog, status.leased) == (3, 0)
        sub.open()
        await settled()
        assert received == [1, 1, 1]


async def test_nothing_is_pulled_while_paused():
    broker = SwallowsCancellation()
    async with subscription_on(broker) as (topic, sub):
        received = []
        sub.on("message", received.append)
        sub.open()
        await settled()
        sub.pause()
        await settled()
        assert broker.waiting_pulls == 0
        await publish(topic, 3)
        await asyncio.sleep(100)
        assert (await sub.describe()).leased == 0
        sub.resume()
        await settled()
        assert len(received) == 3


async def test_closing_does_not_wait_for_ever_for_a_pull_that_will_not_end():
    class Stubborn(FlakyBroker):
        async def pull(self, subscription, **limits):
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    if now() > 500:
                        raise

    async with subscription_on(Stubborn()) as (_, sub):
        sub.open()
        await settled()
        await sub.close()
        assert now() <= 10
        await asyncio.sleep(1000)
        cancel_all_others()


async def test_a_pull_that_fails_because_it_is_cancelled_is_no_error():
    class Complains(FlakyBroker):
        async def pull(self, subscription, **limits):
            try:
                return await super().pull(subscription, **limits)
            except asyncio.CancelledError:
                raise UnavailableError("interrupted") from None

    async with subscription_on(Complains()) as (_, sub):
        errors = []
        sub.on("error", errors.append)
        sub.open()
        await settled()
        sub.pause()
        await asyncio.sleep(100)
        await sub.close()
        assert errors == []


class SendsAhead(FlakyBroker):
    """Has to be told when nobody pulls any more."""

    def __init__(self, **options):
        super().__init__(**options)
        self.told = []
        self.in_leaving = None

    async def leave(self, subscription):
        self.told.append((subscription, self.waiting_pulls))
        if self.in_leaving is not None:
            await self.in_leaving()
        self.told.append("left")

    async def settle(self, subscription, settlements):
        self.told += [settlement.verb.value for settlement in settlements]
        return await super().settle(subscription, settlements)


async def test_a_broker_that_sends_ahead_is_told_to_end_that_before_anything_goes_back():
    broker = SendsAhead()
    async with subscription_on(broker) as (topic, sub):
        messages = []
        sub.on("message", messages.append)
        sub.open()
        await publish(topic, 2)
        await settled()
        assert len(messages) == 2 and broker.told == []
        await sub.close(timeout=0)
        assert broker.told == [("billing", 0), "left", "nack", "nack"]


async def test_a_broker_goes_on_sending_ahead_while_another_stream_pulls():
    broker = SendsAhead()
    async with subscription_on(broker) as (topic, sub):
        another = topic.subscription("billing")
        for one in (sub, another):
            one.on("message", lambda message: message.ack())
            one.open()
        await settled()
        await sub.close()
        assert broker.told == []
        await another.close()
        assert broker.told == [("billing", 0), "left"]


async def test_a_broker_that_cannot_be_told_keeps_no_stream_from_closing():
    async def fail():
        raise RuntimeError("a mistake in an adapter")

    async def hang():
        await asyncio.sleep(1000)

    for in_leaving, errors_seen, took in ((fail, 1, 0), (hang, 0, 5)):
        broker = SendsAhead()
        broker.in_leaving = in_leaving
        async with subscription_on(broker) as (topic, sub):
            errors = []
            sub.on("message", lambda message: None)
            sub.on("error", errors.append)
            sub.open()
            await publish(topic, 1)
            await settled()
            began = now()
            await sub.close(timeout=0)
            assert len(errors) == errors_seen
            assert now() - began == took
            assert (await sub.describe()).leased == 0


async def test_a_pull_whose_own_time_is_up_as_it_is_cancelled_ends():
    """Its own cancellation looks like ours for a moment."""

    class WaitsInTurns(FlakyBroker):
        async def pull(self, subscription, **limits):
            try:
                async with asyncio.timeout_at(100):
                    await asyncio.Event().wait()
            except TimeoutError:
                await asyncio.Event().wait()

    async with subscription_on(WaitsInTurns()) as (_, sub):
        sub.open()
        await settled()
        pulls = asyncio.all_tasks() - {asyncio.current_task()}
        asyncio.get_running_loop().call_at(100, sub.pause)
        await asyncio.sleep(200)
        assert pulls and all(pull.done() for pull in pulls)


async def test_a_broker_that_cancels_itself_keeps_no_stream_from_closing():
    async def awaits_what_was_cancelled():
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    broker = SendsAhead()
    broker.in_leaving = awaits_what_was_cancelled
    async with subscription_on(broker) as (topic, sub):
        sub.on("message", lambda message: None)
        sub.open()
        await publish(topic, 1)
        await settled()
        await sub.close(timeout=0)
        assert (await sub.describe()).leased == 0
