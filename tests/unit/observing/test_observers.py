"""What observers are told, and that they cannot hurt."""

import asyncio
from contextlib import contextmanager, suppress

import pytest

from penstock import App, Draft, FlightState, ManagedPublisher, Message, PubSub, Reject
from penstock.brokers.memory import MemoryBroker
from penstock.consuming.middleware import observe
from penstock.errors import NotFoundError
from penstock.observing import Observer, watch
from penstock.observing.observer import Observers
from penstock.optional_verbs import publish_telling
from penstock.testing import TestApp, VirtualClock, eventually
from tests.support.shop import Invoice, Order


class Telling(Observer):
    """Writes down what it is told."""

    watches = True

    def __init__(self):
        self.told = []

    def sending(self, topic, attributes):
        self.told.append(("sending", topic))
        return {**(attributes or {}), "told": "yes"}

    def published(self, topic, drafts, answers, seconds):
        kind = type(answers).__name__ if isinstance(answers, BaseException) else len(answers)
        self.told.append(("published", topic, len(drafts), kind))

    def received(self, subscription, deliveries):
        self.told.append(("received", subscription, len(deliveries)))

    def settled(self, subscription, settlements, seconds):
        self.told.append(("settled", subscription, [one.verb.value for one in settlements]))

    @contextmanager
    def handling(self, topic, subscription, messages):
        try:
            yield
        except BaseException as error:
            self.told.append(("handled", topic, subscription, len(messages), repr(error)))
            raise
        self.told.append(("handled", topic, subscription, len(messages), None))

    def dead_lettered(self, topic, subscription, reason):
        self.told.append(("dead", topic, subscription, reason))

    def watched(self, subscription, status, window):
        self.told.append(("watched", subscription, status.backlog, window.messages))


class Rude(Observer):
    """Raises whatever it is told, and inside of everything."""

    watches = True

    def _raise(self, *_):
        raise RuntimeError("rude")

    sending = published = received = settled = handling = dead_lettered = watched = _raise


async def test_a_client_tells_of_publishing_receiving_settling_and_handlers():
    telling = Telling()
    async with PubSub(clock=VirtualClock(), observer=telling) as pubsub:
        topic = await pubsub.topic("orders").create()
        billing = await topic.subscription("billing").create()
        received = []

        @billing.on("message")
        async def handle(message: Message) -> None:
            received.append(dict(message.attributes))
            message.ack()

        billing.open()
        await topic.publish_message(b"x", {"k": "v"})
        async with ManagedPublisher(pubsub) as publisher:
            await publisher.publish_async("orders", b"y")
            await publisher.publish_async("orders", b"z")
        await eventually(lambda: len(received) == 3)
        assert received == [{"k": "v", "told": "yes"}, {"told": "yes"}, {"told": "yes"}]
        with pytest.raises(NotFoundError):
            await pubsub.topic("nowhere").publish_message(b"")
        await billing.close()
    told = telling.told
    assert ("published", "orders", 1, 1) in told and ("published", "orders", 2, 2) in told
    assert ("published", "nowhere", 1, "TopicNotFoundError") in told
    assert sum(count for what, _, count in [t for t in told if t[0] == "received"]) == 3
    assert sum(len(t[2]) for t in told if t[0] == "settled") == 3
    assert told.count(("handled", "orders", "billing", 1, None)) == 3


class TellsLater(MemoryBroker):
    async def publish_telling(self, on_sent, topic, drafts):
        answers = await self.publish(topic, drafts)
        on_sent([0])
        return answers


@pytest.mark.parametrize(("broker", "told"), [(MemoryBroker, [0, 1]), (TellsLater, [0])])
async def test_an_observed_broker_tells_what_was_sent_as_the_broker_itself_does(broker, told):
    telling, sent = Telling(), []
    async with PubSub(broker=broker(VirtualClock()), observer=telling) as pubsub:
        await pubsub.topic("orders").create()
        drafts = [Draft.of(b"x"), Draft.of(b"y")]
        await publish_telling(await pubsub.broker(), sent.extend, "orders", drafts)
    assert sent == told
    assert telling.told == [("published", "orders", 2, 2)]


async def test_plain_handlers_of_a_client_are_told_of_too_and_what_they_raise():
    telling = Telling()
    async with PubSub(clock=VirtualClock(), observer=telling) as pubsub:
        topic = await pubsub.topic("orders").create()
        billing = await topic.subscription("billing").create()
        billing.on("error", lambda _: None)

        @billing.on("message")
        def handle(message: Message) -> None:
            if message.delivery_attempt == 1:
                raise ValueError("no")
            message.ack()

        billing.open()
        await topic.publish_message(b"x")
        await eventually(lambda: ("handled", "orders", "billing", 1, None) in telling.told)
        assert ("handled", "orders", "billing", 1, "ValueError('no')") in telling.told


async def test_an_observer_may_come_later_and_beside_others():
    first, second = Telling(), Telling()
    async with PubSub(clock=VirtualClock(), observer=first) as pubsub:
        topic = await pubsub.topic("orders").create()
        pubsub.observe(second)
        await topic.publish_message(b"x")
    assert first.told == second.told == [("sending", "orders"), ("published", "orders", 1, 1)]


async def test_an_app_tells_once_of_every_call_and_of_its_dead():
    telling = Telling()
    app = App()
    app.use(observe(telling))
    app.observe(telling)

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    def bill(order: Order) -> Invoice:
        if order.id:
            raise Reject("no")
        return Invoice(order.id)

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(0))
        await shop.publish("orders", Order(1))
        assert shop.records("invoices")[0].attributes == {"told": "yes"}
    handled = [told for told in telling.told if told[0] == "handled"]
    assert [told[4] for told in handled] == [None, "Reject(reason='no', gave_up=False)"]
    assert ("dead", "orders-dead", "billing", "no") in telling.told
    assert ("published", "invoices", 1, 1) in telling.told


async def test_an_observer_of_the_app_is_outside_of_all_middleware():
    telling = Telling()
    app = App()

    async def turn(call, next):
        if call.topic == "orders":
            raise Reject("turned away")
        await next(call)

    app.use(turn)
    app.observe(telling)
    app.subscriber("orders", "billing")(lambda: None)
    async with TestApp(app) as shop:
        await shop.publish("orders", b"")
    [handled] = [told for told in telling.told if told[0] == "handled"]
    assert "turned away" in handled[4]


async def test_subscriptions_are_looked_at_from_time_to_time():
    telling = Telling()
    app = App()
    app.observe(telling)

    @app.subscriber("orders", "billing", concurrency=2)
    async def slow(order: Order) -> None:
        await asyncio.sleep(20)

    async with TestApp(app) as shop:
        for n in range(5):
            await shop.publish("orders", Order(n), wait=False)
        await asyncio.sleep(16)
        watched = [told for told in telling.told if told[0] == "watched"]
        assert watched[0] == ("watched", "billing", 0, 0)
        assert watched[1] == ("watched", "billing", 5, 2)


async def test_watching_survives_a_subscription_that_cannot_be_described():
    telling = Telling()
    async with PubSub(clock=VirtualClock()) as pubsub:
        topic = await pubsub.topic("orders").create()
        one = await topic.subscription("one").create()
        two = await topic.subscription("two").create()
        one.open()
        two.open()
        watching = asyncio.ensure_future(watch(pubsub, telling, every=5))
        await asyncio.sleep(1)
        broker = await pubsub.broker()
        real = broker.admin.describe_subscription

        async def describe(name):
            if name == "one":
                raise NotFoundError("gone")
            return await real(name)

        broker.admin.describe_subscription = describe
        await asyncio.sleep(6)
        watching.cancel()
        looked_at = [told[1] for told in telling.told]
        assert looked_at.count("one") == 1 and looked_at.count("two") == 2


async def test_an_observer_that_raises_hurts_nobody(caplog):
    app = App()
    app.observe(Rude())
    calls = []

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    def bill(order: Order) -> Invoice:
        calls.append(order)
        if order.id:
            raise Reject("no")
        return Invoice(order.id)

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(0))
        await shop.publish("orders", Order(1))
        assert calls == [Order(0), Order(1)]
        assert shop.published("invoices") == [Invoice(0)]
        assert [letter.reason for letter in shop.dead()] == ["no"]
    assert "of an observer failed" in caplog.text


async def test_an_observer_that_raises_at_the_end_changes_no_outcome():
    class Late(Observer):
        @contextmanager
        def handling(self, topic, subscription, messages):
            try:
                yield
            finally:
                raise RuntimeError("rude")

    class Hungry(Observer):
        @contextmanager
        def handling(self, topic, subscription, messages):
            with suppress(Exception):
                yield

    app = App(max_attempts=1)
    app.observe(Late())
    app.observe(Hungry())

    @app.subscriber("orders", "billing")
    def bill(order: Order) -> None:
        if order.id:
            raise Reject("no")

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(0))
        await shop.publish("orders", Order(1))
        assert [letter.reason for letter in shop.dead()] == ["no"]


class Fatal(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, Fatal])
async def test_whatever_an_observer_raises_messages_flow_and_flights_end_as_they_did(error):
    class Rudest(Observer):
        def _raise(self, *_):
            raise error("rude")

        sending = published = received = settled = handling = _raise

    class Leaving(Observer):
        @contextmanager
        def handling(self, topic, subscription, messages):
            yield
            raise error("rude")

    observer = Observers(Rudest(), Leaving())
    async with PubSub(clock=VirtualClock(), observer=observer) as pubsub:
        topic = await pubsub.topic("orders").create()
        billing = await topic.subscription("billing").create()
        received = []

        @billing.on("message")
        async def handle(message: Message) -> None:
            received.append(message.data)
            message.ack()

        billing.open()
        async with ManagedPublisher(pubsub) as publisher:
            flights = [await publisher.publish_async("orders", b"%d" % n) for n in range(3)]
            # One by one, because a pull that was ended would bring no more.
            await topic.publish_message(b"3")
        assert {flight.state for flight in flights} == {FlightState.ACKED}
        await eventually(lambda: len(received) == 4)
        await topic.publish_message(b"4")
        await eventually(lambda: len(received) == 5)
        assert (await billing.close()).clean
    assert sorted(received) == [b"%d" % n for n in range(5)]
