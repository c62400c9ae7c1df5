"""Where subscriptions are, and what is remembered of them."""

import asyncio
from types import SimpleNamespace

import pytest

from penstock.brokers.nats.catalogue import Catalogue
from penstock.config import SubscriptionName
from penstock.errors import FailedPreconditionError, TopicNotFoundError
from penstock.testing import settled

BY_NAME, BY_ADDRESS = "billing", SubscriptionName("billing", "orders")


class Server:
    """One stream with one consumer, whose ack deadline somebody else may change."""

    options = SimpleNamespace(topics=())

    def __init__(self):
        self.ack_wait = 30
        self.asked = 0

    async def request(self, subject, body=None, *, missing=None):
        self.asked += 1
        if subject == "STREAM.NAMES":
            return {"streams": ["orders"], "total": 1}
        assert subject == "CONSUMER.INFO.orders.billing"
        config = {"durable_name": "billing", "ack_wait": self.ack_wait * 10**9}
        return {"stream_name": "orders", "name": "billing", "config": config}


@pytest.mark.parametrize("first", [BY_NAME, BY_ADDRESS])
@pytest.mark.parametrize("then", [BY_NAME, BY_ADDRESS])
async def test_what_somebody_changes_is_noticed_however_it_was_found(first, then):
    server = Server()
    catalogue = Catalogue(server)
    await catalogue.consumer(first)
    server.ack_wait = 60
    await asyncio.sleep(6)
    consumer = await catalogue.consumer(then)
    for _ in range(2):  # It is looked at in passing, and from then on.
        catalogue.look_again(then)
        await settled()
        await asyncio.sleep(6)
    assert catalogue.latest(consumer).config.ack_deadline == 60
    assert (await catalogue.consumer(then)).config.ack_deadline == 60


async def test_a_subscription_that_is_looked_at_all_the_time_is_asked_for_now_and_then():
    server = Server()
    catalogue = Catalogue(server)
    consumer = await catalogue.consumer(BY_ADDRESS)
    before = server.asked
    for _ in range(200):
        await asyncio.sleep(0.1)
        catalogue.look_again_at(consumer)
    await settled()
    assert server.asked - before == 3, "every five seconds"


async def test_a_name_that_several_topics_have_is_refused_and_found_by_its_topic():
    class Two(Server):
        async def request(self, subject, body=None, *, missing=None):
            if subject == "STREAM.NAMES":
                return {"streams": ["orders", "invoices"], "total": 2}
            stream = subject.split(".")[2]
            return {"stream_name": stream, "name": "billing", "config": {}}

    catalogue = Catalogue(Two())
    with pytest.raises(FailedPreconditionError, match="invoices, orders"):
        await catalogue.consumer(BY_NAME)
    assert (await catalogue.consumer(BY_ADDRESS)).stream == "orders"


async def test_a_topic_that_was_made_again_is_soon_routed_as_it_says():
    class Routing(Server):
        routed, asked = '["stage","kind"]', 0

        async def request(self, subject, body=None, *, missing=None):
            assert subject == "STREAM.INFO.orders"
            self.asked += 1
            if self.routed is None:
                raise missing()
            mark = {"penstock": f'{{"routed":{self.routed}}}'}
            subjects = ["orders", "orders.>"]
            config = {"name": "orders", "subjects": subjects, "max_age": 0, "metadata": mark}
            return {"config": config}

    server = Routing()
    catalogue = Catalogue(server)
    assert (await catalogue.routes("orders")).routed == ("stage", "kind")
    assert catalogue.known_routes("orders") is None, "it is to be looked at again"
    server.routed = None  # Gone for a moment: whoever publishes finds that out.
    await asyncio.sleep(6)
    for _ in range(3):
        assert (await catalogue.routes("orders")).routed == ("stage", "kind")
        await settled()
    assert server.asked == 2
    server.routed = '["kind"]'
    await asyncio.sleep(6)
    await catalogue.routes("orders")
    await settled()
    assert (await catalogue.routes("orders")).routed == ("kind",)
    assert server.asked == 3


class Slow(Server):
    """Takes its time to say how a topic routes; `missing_for`: so often it does not find it."""

    def __init__(self, missing_for=0):
        super().__init__()
        self.missing_for = missing_for
        self.asked = 0

    async def request(self, subject, body=None, *, missing=None):
        self.asked += 1
        await asyncio.sleep(1)
        if self.asked <= self.missing_for:
            raise missing()
        return {"config": {"name": "orders", "subjects": ["orders", "orders.>"], "max_age": 0}}


async def test_whoever_asks_how_a_topic_routes_goes_on_in_the_order_of_asking():
    """Those who publish write when they know: one that comes just when the answer does must not
    overtake one that waited for it."""
    server, gone = Slow(), []
    catalogue = Catalogue(server)
    asking = []

    async def publish(n):
        await catalogue.routes("orders")
        gone.append(n)

    def come():
        asking.append(asyncio.ensure_future(publish(len(asking))))

    come()
    await asyncio.sleep(0.999)
    for _ in range(3):
        come()
    while len(gone) < 3:  # One a turn of the loop, around and after the answer.
        come()
        await asyncio.sleep(0)
        # On the turn that the answer is due the clock has to move.
        if not catalogue._routes:
            await asyncio.sleep(0.0005)
    come()
    await asyncio.gather(*asking)
    assert gone == list(range(len(asking)))
    assert server.asked == 1


async def test_cancelling_one_who_asks_leaves_the_others_in_order():
    catalogue, gone = Catalogue(Slow()), []

    async def publish(n):
        await catalogue.routes("orders")
        gone.append(n)

    asking = [asyncio.ensure_future(publish(n)) for n in range(4)]
    await asyncio.sleep(0.5)
    asking[0].cancel()
    asking[2].cancel()
    await asyncio.wait(asking)
    assert gone == [1, 3]


async def test_a_topic_that_was_missing_is_asked_for_again():
    server = Slow(missing_for=1)
    catalogue = Catalogue(server)
    told = await asyncio.gather(
        *(catalogue.routes("orders") for _ in range(2)), return_exceptions=True
    )
    assert [type(one) for one in told] == [TopicNotFoundError] * 2
    assert (await catalogue.routes("orders")).routed == ()
    assert server.asked == 2


async def test_how_a_topic_routes_is_known_at_once_when_nobody_waits_to_be_told():
    catalogue = Catalogue(Slow())
    told = []

    async def ask(who):
        told.append((who, await catalogue.routes("orders")))

    asking = [asyncio.ensure_future(ask(who)) for who in ("first", "second")]
    await settled()
    assert catalogue.known_routes("orders") is None
    await asyncio.sleep(1)
    while catalogue.known_routes("orders") is None:
        await asyncio.sleep(0)
    assert [who for who, _ in told] == ["first", "second"], "nobody overtakes those who wait"
    assert [routes for _, routes in told] == 2 * [catalogue.known_routes("orders")]
    await asyncio.gather(*asking)
