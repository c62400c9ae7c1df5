"""An app from publish to settlement."""

import asyncio
import logging
import re
import threading
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

import pytest

from penstock import (
    App,
    Attribute,
    Attributes,
    Draft,
    Message,
    PubSub,
    Reject,
    Retry,
    RetryPolicy,
    Router,
    connect,
)
from penstock.brokers.memory import MemoryBroker
from penstock.config import DUPLICATE_WINDOW
from penstock.consuming.middleware import timeout
from penstock.errors import FailedPreconditionError, NotFoundError, UnavailableError
from penstock.testing import TestApp, VirtualClock, eventually
from tests.support.shop import Account, Invoice, Order, Parcel


def an_app(handler, **options):
    app = App()
    app.subscriber("orders", "billing", **options)(handler)
    return app


def ignore(order: Order) -> None:
    pass


# What handlers are called with.


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_handler_gets_its_body_by_annotation_and_its_return_acks(asynchronous):
    def plain(order: Order) -> None:
        pass

    async def waiting(order: Order) -> None:
        await asyncio.sleep(1)

    handler = waiting if asynchronous else plain
    async with TestApp(an_app(handler)) as shop:
        await shop.publish("orders", Order(1))
        assert shop.calls(handler) == [Order(1)]
        [subscription] = shop.app.subscriptions
        assert (await subscription.describe()).backlog == 0


async def test_a_handler_gets_everything_it_asks_for():
    seen = []

    def handle(
        message: Message,
        attributes: Attributes,
        tenant: Annotated[str, Attribute("tenant")],
        order: Order,
        count: Annotated[int, Attribute("count")] = 7,
        *,
        flag: Annotated[bool, Attribute("flag")],
    ) -> None:
        seen.append((message.data, dict(attributes), tenant, order, count, flag))

    async with TestApp(an_app(handle)) as shop:
        attributes = {"tenant": "acme", "flag": "true"}
        await shop.publish("orders", Order(1), attributes=attributes)
        await shop.publish("orders", Order(1), attributes={**attributes, "count": "9"})
        assert [one[1:] for one in seen] == [
            (attributes, "acme", Order(1), 7, True),
            ({**attributes, "count": "9"}, "acme", Order(1), 9, True),
        ]
        assert seen[0][0] == b'{"id":1,"customer":"ann"}'
        assert shop.calls(handle) == [Order(1)] * 2


async def test_an_attribute_that_is_missing_or_wrong_makes_a_dead_letter():
    def handle(order: Order, count: Annotated[int, Attribute("count")]) -> None:
        pass

    async with TestApp(an_app(handle)) as shop:
        await shop.publish("orders", Order(1))
        await shop.publish("orders", Order(1), attributes={"count": "many"})
        assert [letter.reason for letter in shop.dead()] == ["undecodable"] * 2
        assert "'count' is missing" in shop.dead()[0].error
        assert "attribute 'count'" in shop.dead()[1].error
        assert shop.calls(handle) == []


@pytest.mark.parametrize("kind", [bytes, str, dict, Parcel, Account, Order | None])
async def test_bodies_of_every_kind_reach_their_handlers(kind):
    def handle(body: kind) -> None:
        pass

    sent = {bytes: b"x", str: "x", dict: {"a": 1}, Parcel: Parcel(1), Account: Account(name="a")}
    body = sent.get(kind, Order(1))
    async with TestApp(an_app(handle)) as shop:
        await shop.publish("orders", body)
        assert shop.calls(handle) == [body]


async def test_handlers_need_no_body_and_may_be_methods_objects_or_wrapped():
    class Desk:
        def __init__(self):
            self.orders = []

        async def take(self, order: Order) -> None:
            self.orders.append(order)

        async def __call__(self, order: Order) -> None:
            self.orders.append(order)

    async def nothing() -> None:
        pass

    async def real(order: Order) -> None:
        desk.orders.append(order)

    def wrapper(order: Order) -> None:
        return real(order)

    desk = Desk()
    app = App()
    for number, handler in enumerate((desk.take, desk, nothing, wrapper)):
        app.subscriber("orders", f"sub-{number}")(handler)
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert desk.orders == [Order(1)] * 3
        assert shop.calls(nothing) == [None]


async def test_a_blocking_function_may_raise_even_what_no_future_takes():
    calls = []

    def wait(order: Order) -> None:
        calls.append(order)
        next(iter(()))

    app = an_app(wait, blocking=True, max_attempts=1)
    pubsub = PubSub()
    await pubsub.topic("orders-dead").create(message_retention=3600)
    await app.start_on(pubsub, app.bindings())
    await app.publish("orders", Order(1))
    [subscription] = app.subscriptions
    while (await subscription.describe()).backlog:
        await asyncio.sleep(0.001)
    [letter] = [letter async for letter in pubsub.dead_letters("orders-dead").read()]
    assert "StopIteration" in letter.error
    await app.stop()
    assert calls == [Order(1)]


async def test_a_blocking_function_runs_in_a_thread_and_is_acked():
    threads = []

    def wait(order: Order) -> None:
        threads.append(threading.current_thread())

    app = an_app(wait, blocking=True)
    pubsub = PubSub()
    topic = await pubsub.topic("orders").create()
    subscription = await topic.subscription("billing").create()
    await app.start_on(pubsub, app.bindings())
    await app.publish("orders", Order(1))
    while (await subscription.describe()).backlog:
        await asyncio.sleep(0.001)
    assert threads[0] is not threading.main_thread()
    await app.stop()


# What becomes of messages.


async def test_a_handler_that_raises_is_tried_again_and_then_a_dead_letter():
    times = []

    async def handle(order: Order) -> None:
        times.append(asyncio.get_running_loop().time())
        raise ValueError("no price")

    retry = RetryPolicy(minimum_backoff=2, maximum_backoff=60)
    app = an_app(handle, retry=retry, max_attempts=4, dead_letters="graveyard")
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1), attributes={"tenant": "acme"}, ordering_key="ann")
        assert [round(b - a) for a, b in pairwise(times)] == [2, 4, 8]
        [letter] = shop.dead("graveyard")
        assert (letter.reason, letter.error, letter.attempt) == (
            "gave-up",
            "ValueError: no price",
            4,
        )
        assert (letter.data, dict(letter.attributes)) == (
            b'{"id":1,"customer":"ann"}',
            {"tenant": "acme"},
        )
        assert (letter.ordering_key, letter.origin.topic) == ("ann", "orders")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("raised", [False, True])
async def test_retry_and_reject_mean_the_same_returned_or_raised(asynchronous, raised):
    times = []

    def decide(order: Order) -> object:
        times.append(asyncio.get_running_loop().time())
        outcome = Retry("busy", after=30) if len(times) == 1 else Reject("no-such-customer")
        if raised:
            raise outcome
        return outcome

    async def decide_later(order: Order) -> object:
        return decide(order)

    async with TestApp(an_app(decide_later if asynchronous else decide)) as shop:
        await shop.publish("orders", Order(1))
        assert round(times[1] - times[0]) == 30
        [letter] = shop.dead()
        assert (letter.reason, letter.attempt, letter.error) == ("no-such-customer", 2, None)


async def never_awaited() -> None:
    raise AssertionError


MISTAKES = [
    (lambda: Reject, r'the class Reject; write `return Reject\("why"\)`'),
    (lambda: Retry, r'the class Retry; write `return Retry\("why"\)`'),
    (lambda: (Reject, "why"), "the class Reject"),
    (lambda: ValueError, r"the class ValueError; write `raise ValueError\(…\)`"),
    (lambda: ValueError("no price"), "a ValueError; raise it"),
    (lambda: (one for one in ()), "a generator, which has run nothing yet"),
    (never_awaited, "a coroutine that nobody awaits; write `return await …`"),
]


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize(("mistake", "said"), MISTAKES)
async def test_what_nobody_can_have_meant_to_return_is_an_error_and_no_ack(mistake, said, around):
    async def bill(order: Order) -> object:
        return mistake()

    middleware = [timeout(30)] if around else []
    async with TestApp(an_app(bill, max_attempts=1, middleware=middleware)) as shop:
        await shop.publish("orders", Order(1))
        [letter] = shop.dead()
    assert letter.reason == "gave-up"
    assert re.search(rf"bill \(.*test_app.py:\d+\) returned {said}", letter.error)


async def test_what_a_handler_returns_for_nobody_may_be_anything_else():
    async def bill(order: Order) -> object:
        return [ValueError("told and dealt with"), asyncio.ensure_future(asyncio.sleep(0)), Order]

    async with TestApp(an_app(bill)) as shop:
        await shop.publish("orders", Order(1))
        assert not shop.dead() and len(shop.calls(bill)) == 1


@pytest.mark.parametrize("around", [False, True])
async def test_a_plain_function_that_returns_what_it_should_raise_is_no_ack_either(around):
    def bill(order: Order) -> object:
        return Reject

    middleware = [timeout(30)] if around else []
    async with TestApp(an_app(bill, max_attempts=1, middleware=middleware)) as shop:
        await shop.publish("orders", Order(1))
        [letter] = shop.dead()
    assert "returned the class Reject" in letter.error


async def test_a_retry_for_ever_ends_in_the_dead_letters_with_its_reason():
    async with TestApp(an_app(lambda: Retry("busy"), max_attempts=3)) as shop:
        await shop.publish("orders", b"")
        [letter] = shop.dead()
        assert (letter.reason, letter.attempt) == ("busy", 3)


async def test_a_reject_tells_what_caused_it():
    def handle(order: Order) -> None:
        try:
            raise KeyError("price")
        except KeyError as error:
            raise Reject("no-price") from error

    async with TestApp(an_app(handle)) as shop:
        await shop.publish("orders", Order(1))
        [letter] = shop.dead()
        assert (letter.reason, letter.error) == ("no-price", "KeyError: 'price'")


async def test_what_does_not_decode_is_a_dead_letter_at_once_and_never_comes_again():
    def handle(order: Order) -> None:
        pass

    async with TestApp(an_app(handle)) as shop:
        await shop.publish("orders", b'{"id": "one"}')
        [letter] = shop.dead()
        assert (letter.reason, letter.attempt) == ("undecodable", 1)
        assert letter.error == "ValueError: Expected `int`, got `str` - at `$.id`"
        assert letter.data == b'{"id": "one"}'
        assert shop.calls(handle) == []


async def test_without_dead_letters_a_reject_drops_and_says_so(caplog):
    async with TestApp(an_app(lambda: Reject("no"), dead_letters=None)) as shop:
        await shop.publish("orders", b"")
        assert shop.dead() == []
    [said] = [r for r in caplog.records if r.levelname == "ERROR"]
    assert "dropped (no)" in said.getMessage()


async def test_without_an_end_of_attempts_a_message_is_tried_until_it_succeeds():
    tries = []

    def handle(order: Order) -> None:
        tries.append(order)
        if len(tries) < 50:
            raise ValueError

    async with TestApp(an_app(handle, max_attempts=None)) as shop:
        await shop.publish("orders", Order(1))
        assert len(tries) == 50
        assert not shop.dead()


async def test_what_a_handler_settled_itself_stays_as_it_settled_it():
    def handle(message: Message) -> None:
        message.ack()
        raise ValueError("too late")

    async with TestApp(an_app(handle)) as shop:
        await shop.publish("orders", b"")
        assert len(shop.calls(handle)) == 1
        assert not shop.dead()


async def test_a_dead_letter_that_cannot_be_stored_keeps_its_message(caplog):
    async with TestApp(an_app(lambda: Reject("no"))) as shop:
        await shop.app.pubsub.topic("orders-dead").delete()
        await shop.publish("orders", b"", wait=False)
        await eventually(lambda: "stays" in caplog.text)
        await shop.app.pubsub.topic("orders-dead").create(message_retention=60)
        await shop.idle()
        assert [letter.reason for letter in shop.dead()] == ["no"]


async def test_a_letter_that_the_broker_refuses_goes_without_the_messages_attributes():
    # As another client may publish: longer than attributes of ours may be.
    attributes = {"note": "x" * 2000, "tenant": "acme"}
    async with TestApp(an_app(lambda: Reject("no"))) as shop:
        broker = await shop.app.pubsub.broker()
        await broker.publish("orders", [Draft(b"body", attributes)])
        await shop.idle()
        [letter] = shop.dead()
        assert (letter.data, dict(letter.attributes)) == (b"body", {})
        assert shop.records("orders-dead")[0].attributes["dead-letter-dropped"] == "2"


async def test_a_message_that_ends_the_process_each_time_is_given_up_in_the_end():
    """Deliveries that nobody answers, as a crash leaves them."""
    calls = []

    def handle(message: Message) -> None:
        calls.append(message.delivery_attempt)

    app = an_app(handle, max_attempts=2, retry=None)
    async with PubSub(clock=VirtualClock()) as first:
        topic = await first.topic("orders").create()
        await first.topic("orders-dead").create(message_retention=60)
        subscription = await topic.subscription("billing", ack_deadline=1).create()
        await topic.publish_message(b"poison")
        broker = await first.broker()
        for _ in range(12):
            assert await broker.pull("billing", max_messages=1, max_bytes=1000, wait=5)
        await app.start_on(PubSub(broker=broker, clock=first.clock), app.bindings())
        while (await subscription.describe()).backlog:
            await asyncio.sleep(1)
        assert calls == []
        [batch] = [batch async for batch in broker.log.read("orders-dead", 1, 10)]
        assert batch[0].attributes["dead-letter-reason"] == "unanswered"
        await app.stop()


async def test_deliveries_beyond_the_attempts_that_nobody_saw_are_still_handled():
    async with PubSub(clock=VirtualClock()) as first:
        topic = await first.topic("orders").create()
        await topic.subscription("billing", ack_deadline=1).create()
        await topic.publish_message(b"given back")
        broker = await first.broker()
        for _ in range(8):
            await broker.pull("billing", max_messages=1, max_bytes=1000, wait=5)
        seen = []

        def handle(message: Message) -> None:
            seen.append(message.delivery_attempt)

        app = an_app(handle, max_attempts=2)
        await app.start_on(PubSub(broker=broker, clock=first.clock), app.bindings())
        await eventually(lambda: seen == [9], within=30)
        await app.stop()


class Counting(MemoryBroker):
    """Says of every delivery which attempt it is; or fails to, if that is what it has to say."""

    capabilities = replace(MemoryBroker.capabilities, counts_releases=True)

    def __init__(self, clock, *says):
        super().__init__(clock)
        self.says = list(says)
        self.noted = []

    async def note_releases(self, subscription):
        self.noted.append(subscription)

    async def attempt(self, subscription, ack_id):
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, Exception):
            raise said
        return said


def seen_plain(seen):
    def handle(message: Message) -> None:
        seen.append(message.delivery_attempt)

    return handle


def seen_async(seen):
    async def handle(message: Message) -> None:
        seen.append(message.delivery_attempt)

    return handle


def seen_in_batches(seen):
    def handle(messages: list[Message]) -> None:
        seen.extend(message.delivery_attempt for message in messages)

    return handle


@pytest.mark.parametrize("kind", [seen_plain, seen_async, seen_in_batches])
@pytest.mark.parametrize("middleware", [(), timeout(30)])
async def test_what_was_released_often_is_handled_like_any_other(kind, middleware):
    clock, seen = VirtualClock(), []
    broker = Counting(clock, 1)
    async with PubSub(broker=broker, clock=clock) as first:
        topic = await first.topic("orders").create()
        await topic.subscription("billing", ack_deadline=1).create()
        await topic.publish_message(b"given back")
        for _ in range(20):
            await broker.pull("billing", max_messages=1, max_bytes=1000, wait=5)
        app = an_app(kind(seen), max_attempts=2, middleware=middleware)
        await app.start_on(PubSub(broker=broker, clock=clock), app.bindings())
        await eventually(lambda: seen == [21], within=30)
        await app.stop()
        assert broker.noted == ["billing"]
        assert (await broker.log.extent("orders-dead")).last == 0
    await broker.aclose()


async def test_a_message_is_not_given_up_before_it_is_known_how_often_it_was_seen(caplog):
    clock, tries = VirtualClock(), []
    # Two attempts that count, and in between nobody can be asked.
    broker = Counting(clock, UnavailableError("away"), UnavailableError("away"), 1, 2)

    def handle(order: Order) -> None:
        tries.append(order)
        raise ValueError

    app = an_app(handle, max_attempts=2)
    await app.start_on(PubSub(broker=broker, clock=clock), app.bindings())
    await app.publish("orders", Order(1))
    letters = app.pubsub.dead_letters("orders-dead")
    while not await letters.count():
        await asyncio.sleep(1)
    [letter] = [one async for one in letters.read()]
    await app.stop()
    await broker.aclose()
    # The first is not asked about: it cannot be the last.
    assert (len(tries), letter.reason, letter.attempt) == (5, "gave-up", 2)
    assert "how often it was seen is unknown, away" in caplog.text


async def test_a_replay_is_for_the_subscription_that_gave_it_up(caplog):
    caplog.set_level(logging.INFO, logger="penstock.app")
    app = App()
    seen = []

    @app.subscriber("orders", "billing")
    def bill(message: Message) -> None:
        seen.append("bill")

    @app.subscriber("orders", "shipping")
    def ship(message: Message) -> None:
        seen.append("ship")

    async with TestApp(app) as shop:
        await shop.publish("orders", b"", attributes={"replay-for": "shipping"})
        assert seen == ["ship"]
    assert "of 'billing' skipped: it is replayed for 'shipping'" in caplog.text


async def test_failures_are_logged_with_ids_and_without_bodies(caplog):
    def handle(order: Order) -> None:
        raise ValueError("no price")

    async with TestApp(an_app(handle, max_attempts=2)) as shop:
        message_id = await shop.publish("orders", Order(1, customer="secret"))
        await shop.publish("orders", b'{"id": "secret"}')
    first, last, rejected = (r for r in caplog.records if r.name == "penstock.app")
    assert (first.levelname, last.levelname, rejected.levelname) == ("WARNING", "ERROR", "WARNING")
    assert (first.message_id, first.subscription, first.attempt) == (message_id, "billing", 1)
    assert "attempt 2 of 2" in last.getMessage()
    assert "secret" not in caplog.text


# What handlers publish.


async def test_what_a_handler_returns_is_published_under_an_id_of_its_message():
    app = App()

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    async def bill(order: Order) -> Invoice | None:
        return Invoice(order.id) if order.id else None

    async with TestApp(app) as shop:
        message_id = await shop.publish("orders", Order(1), ordering_key="ann")
        await shop.publish("orders", Order(0))
        assert shop.published("invoices") == [Invoice(1)]
        [record] = shop.records("invoices")
        order = shop.records("orders")[0]
        assert record.message_id == f"{message_id}/billing/0-0/{order.publish_time_ns}"
        assert record.ordering_key == "ann"


@pytest.mark.parametrize("above", [False, True])
async def test_publishes_may_stand_above_or_below_subscriber(above):
    app = App()

    def bill(order: Order) -> list[Invoice]:
        return [Invoice(order.id), Invoice(order.id + 1)]

    marks = [app.subscriber("orders", "billing"), app.publishes("invoices"), app.publishes("copy")]
    for mark in marks if above else marks[::-1]:
        mark(bill)
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert shop.published("invoices") == shop.published("copy") == [Invoice(1), Invoice(2)]
        ids = [r.message_id for topic in ("invoices", "copy") for r in shop.records(topic)]
        assert len(set(ids)) == 4


async def test_a_redelivery_publishes_nothing_twice():
    app = App()
    tries = []

    @app.subscriber("orders", "billing", retry=RetryPolicy(minimum_backoff=1, maximum_backoff=1))
    @app.publishes("invoices")
    def bill(order: Order, message: Message) -> Invoice:
        tries.append(message.delivery_attempt)
        if len(tries) < 3:
            message.nack()  # As if the ack was lost: it was published, and comes again.
        return Invoice(order.id)

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert tries == [1, 2, 3]
        assert shop.published("invoices") == [Invoice(1)]


async def test_an_id_that_a_publisher_used_again_is_another_message_with_another_result():
    app = App()

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    async def bill(order: Order) -> Invoice:
        await asyncio.sleep(60 if order.id == 1 else 0)
        return Invoice(order.id)

    async with TestApp(app) as shop:
        began = asyncio.get_running_loop().time()
        await shop.publish("orders", Order(1), message_id="A")
        # The orders have forgotten the id by now; the invoices remember theirs.
        await asyncio.sleep(began + DUPLICATE_WINDOW + 1 - asyncio.get_running_loop().time())
        await shop.publish("orders", Order(2), message_id="A")
        assert shop.published("invoices") == [Invoice(1), Invoice(2)]


async def test_a_message_is_not_acked_before_its_result_is_stored():
    app = App(retry=RetryPolicy(minimum_backoff=1, maximum_backoff=1), max_attempts=None)

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    def bill(order: Order) -> Invoice:
        return Invoice(order.id)

    async with TestApp(app) as shop:
        await shop.app.pubsub.topic("invoices").delete()
        await shop.publish("orders", Order(1), wait=False)
        await eventually(lambda: len(shop.calls(bill)) > 1)
        await shop.app.pubsub.topic("invoices").create(message_retention=60)
        await shop.idle()
        assert shop.published("invoices") == [Invoice(1)]


async def test_an_outcome_among_results_is_an_outcome_and_not_a_message():
    app = App()

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    def bill(order: Order) -> list[Invoice | Reject]:
        return [Invoice(1), Reject("half-way")]

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert shop.published("invoices", Invoice) == []
        assert [letter.reason for letter in shop.dead()] == ["half-way"]


async def test_a_draft_is_published_as_it_is_with_an_id_if_it_has_none():
    app = App()

    @app.subscriber("orders", "billing")
    @app.publishes("raw")
    def bill(order: Order) -> list[Draft]:
        return [Draft(b"a", {"k": "v"}), Draft(b"b", message_id="mine", ordering_key="bob")]

    async with TestApp(app) as shop:
        message_id = await shop.publish("orders", Order(1), ordering_key="ann")
        first, second = shop.records("raw")
        [order] = shop.records("orders")
        derived = f"{message_id}/billing/0-0/{order.publish_time_ns}"
        assert (first.message_id, first.attributes) == (derived, {"k": "v"})
        assert (second.message_id, second.ordering_key) == ("mine", "bob")


async def test_results_can_be_msgpack_and_the_next_handler_reads_them():
    app = App()

    @app.subscriber("orders", "billing")
    @app.publishes("invoices", content_type="application/msgpack")
    def bill(order: Order) -> Invoice:
        return Invoice(order.id)

    @app.subscriber("invoices", "archive")
    def keep(invoice: Invoice) -> None:
        pass

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert shop.calls(keep) == [Invoice(1)]
        assert shop.records("invoices")[0].data == b"\x81\xa5order\x01"


# Routers.


async def test_a_router_is_included_with_a_prefix_before_all_its_names():
    router = Router()

    @router.subscriber("orders", "billing", dead_letters="graveyard")
    @router.publishes("invoices")
    def bill(order: Order) -> Invoice:
        return Invoice(order.id)

    @router.subscriber("orders", "shipping")
    def ship(order: Order) -> None:
        raise Reject("no")

    app = App()
    app.include(router, prefix="eu-")
    app.include(router, prefix="us-")
    async with TestApp(app) as shop:
        await shop.publish("eu-orders", Order(1))
        assert shop.published("eu-invoices") == [Invoice(1)]
        assert shop.published("us-invoices") == []
        assert [letter.topic for letter in shop.dead()] == ["eu-orders-dead"]
        assert sorted(one.name for one in app.subscriptions) == [
            "eu-billing", "eu-shipping", "us-billing", "us-shipping",
        ]  # fmt: skip
        assert "eu-graveyard" in await app.pubsub.topics()


class Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [asyncio.CancelledError, Odd])
@pytest.mark.parametrize("kind", ["plain", "waiting", "wrapped", "inside middleware"])
async def test_a_handler_may_fail_with_anything_and_the_letter_says_with_what(kind, error):
    calls = []

    def plain(order: Order) -> None:
        calls.append(order)
        raise error("the reason")

    async def waiting(order: Order) -> None:
        plain(order)

    def wrapped(order: Order) -> object:
        return waiting(order)

    async def through(call, next):
        return await next(call)

    handler = {"plain": plain, "wrapped": wrapped}.get(kind, waiting)
    middleware = [through] if kind == "inside middleware" else []
    app = an_app(handler, max_attempts=2, middleware=middleware)
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert calls == [Order(1)] * 2
        [letter] = shop.dead()
        assert letter.reason == "gave-up"
        assert error.__name__ in letter.error
        assert "the reason" in letter.error


# Starting and stopping.


async def test_an_app_makes_what_is_missing_and_uses_what_is_there(caplog):
    app = an_app(lambda: None, ack_deadline=30)
    app.topic("orders", message_retention=7.0)
    broker = await connect(clock=VirtualClock())
    for _ in range(2):
        pubsub = PubSub(broker=broker, clock=VirtualClock())
        await app.start_on(pubsub, app.bindings())
        assert (await pubsub.topic("orders").describe()).config.message_retention == 7.0
        assert (await pubsub.topic("orders-dead").describe()).config.message_retention > 86_400
        status = await pubsub.subscription("billing").describe()
        assert (status.config.ack_deadline, status.config.topic) == (30, "orders")
        await app.stop()
    assert caplog.text == ""


@pytest.mark.parametrize("provision", ["ensure", "check"])
async def test_a_subscription_that_is_not_as_declared_is_made_so_where_it_may_be(caplog, provision):
    def handle(order: Order) -> None:
        pass

    app = an_app(handle, ack_deadline=30)
    app.provision = provision
    pubsub = PubSub(clock=VirtualClock())
    topic = await pubsub.topic("orders").create()
    await pubsub.topic("orders-dead").create()
    theirs = topic.subscription("billing", ack_deadline=20)
    await theirs.create()
    await app.start_on(pubsub, app.bindings())
    assert "ack_deadline is 20, not 30" in caplog.text
    config = (await theirs.describe()).config
    assert config.ack_deadline == (30 if provision == "ensure" else 20)
    assert config.retry_policy is None, "nobody asked for that"
    await app.stop()


async def test_what_cannot_be_changed_of_a_subscription_is_told_and_the_rest_left_alone(caplog):
    app = an_app(lambda: None, ack_deadline=30, message_ordering=True)
    pubsub = PubSub(clock=VirtualClock())
    theirs = (await pubsub.topic("orders").create()).subscription("billing", ack_deadline=20)
    await theirs.create()
    await app.start_on(pubsub, app.bindings())
    assert "used as it is" in caplog.text and "cannot change message_ordering" in caplog.text
    assert (await theirs.describe()).config.ack_deadline == 20
    await app.stop()


async def test_a_subscription_of_another_topic_is_refused():
    app = an_app(lambda: None)
    pubsub = PubSub(clock=VirtualClock())
    await (await pubsub.topic("others").create()).subscription("billing").create()
    with pytest.raises(FailedPreconditionError, match="exists on topic 'others', not on 'orders'"):
        await app.start_on(pubsub, app.bindings())
    assert not app.running


async def test_checking_names_all_topics_that_are_missing_and_whose_they_are():
    app = an_app(lambda: None)
    app.provision = "check"
    with pytest.raises(NotFoundError) as caught:
        await app.start()
    assert "'orders', for" in str(caught.value)
    assert "'orders-dead', for" in str(caught.value)
    assert "test_app.py" in str(caught.value)
    pubsub = PubSub(clock=VirtualClock())
    await pubsub.topic("orders").create()
    await pubsub.topic("orders-dead").create()
    with pytest.raises(NotFoundError, match=r"Subscriptions that are not there(?s:.*)'billing'"):
        await app.start_on(pubsub, app.bindings())


async def test_lifespans_are_entered_in_order_left_in_reverse_and_left_when_starting_fails():
    happened = []
    app = an_app(lambda: happened.append("handled"))

    for name in ("first", "second"):

        @app.lifespan
        async def span(name=name):
            happened.append(f"{name} in")
            yield
            happened.append(f"{name} out")

    async with TestApp(app) as shop:
        await shop.publish("orders", b"")
    assert happened == ["first in", "second in", "handled", "second out", "first out"]
    happened.clear()

    @app.lifespan
    async def broken():
        raise RuntimeError("no database")
        yield

    with pytest.raises(RuntimeError, match="no database"):
        await app.start()
    assert happened == ["first in", "second in", "second out", "first out"]
    assert not app.running


async def test_stopping_finishes_what_is_in_hand():
    done = []

    async def handle(order: Order) -> None:
        await asyncio.sleep(5)
        done.append(order)

    app = an_app(handle)
    async with TestApp(app) as shop:
        for n in range(3):
            await shop.publish("orders", Order(n), wait=False)
        await asyncio.sleep(1)
        report = await app.stop()
        assert report.clean
        assert len(done) == 3
    assert (await app.stop()).clean


@pytest.mark.parametrize("timeout", [None, 3.0])
async def test_a_handler_may_stop_its_app_which_waits_for_all_others(timeout):
    reports, done = [], []

    async def handle(order: Order) -> None:
        if order.id == 1:
            async with asyncio.timeout(60):
                reports.append(await app.stop(timeout=timeout))
        else:
            await asyncio.sleep(2)
            done.append(order)

    app = an_app(handle)
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(2), wait=False)
        message_id = await shop.publish("orders", Order(1), wait=False)
        await eventually(lambda: reports)
        assert reports[0].unfinished == (message_id,)
        assert done == [Order(2)]
        assert not app.running


async def test_an_app_goes_on_stopping_when_whoever_asked_is_cancelled():
    log = []

    async def handle(order: Order) -> None:
        await asyncio.sleep(3)
        log.append("handled")

    app = an_app(handle)

    @app.lifespan
    async def life():
        yield
        log.append("left")

    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1), wait=False)
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(app.stop(), 1)
        assert app.running
        with pytest.raises(FailedPreconditionError):
            await app.start()
        report = await app.stop()
        assert report.clean
        assert log == ["handled", "left"]
        assert not app.running


async def test_a_lifespan_is_left_on_the_task_it_was_entered_on_whoever_stops():
    tasks = []

    app = an_app(ignore)

    @app.lifespan
    async def life():
        tasks.append(asyncio.current_task())
        yield
        tasks.append(asyncio.current_task())

    await asyncio.create_task(app.start())
    await asyncio.create_task(app.stop())
    assert tasks[0] is tasks[1]


async def test_what_a_lifespan_runs_in_the_background_ends_the_app_when_it_fails():
    app = an_app(ignore)

    async def fail():
        await asyncio.sleep(5)
        raise ValueError("the background")

    @app.lifespan
    async def life():
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            yield

    await app.start()
    with pytest.raises(ExceptionGroup) as caught:
        await app.wait(asyncio.Event())
    assert [str(error) for error in caught.value.exceptions] == ["the background"]
    assert not app.running


async def test_a_lifespan_may_ask_for_the_end():
    app = an_app(ignore)

    @app.lifespan
    async def life():
        yield
        assert (await app.stop()).clean

    await app.start()
    async with asyncio.timeout(60):
        await app.stop()
    assert not app.running


async def test_stopping_with_a_deadline_gives_back_what_is_not_done():
    async def handle(order: Order) -> None:
        await asyncio.sleep(500)

    app = an_app(handle)
    async with TestApp(app) as shop:
        message_id = await shop.publish("orders", Order(1), wait=False)
        await asyncio.sleep(1)
        report = await app.stop(timeout=3)
        assert report.unfinished == report.cancelled == (message_id,)


async def test_an_app_is_ready_while_all_its_subscriptions_receive():
    app = an_app(lambda: None)
    assert not app.ready
    async with TestApp(app):
        assert app.ready and app.running
        stop = asyncio.Event()
        waiting = asyncio.ensure_future(app.wait(stop))
        await app.subscriptions[0].delete()
        with pytest.raises(NotFoundError):
            await waiting
        assert not app.ready
    assert not app.ready


async def test_an_app_that_does_not_run_says_so():
    app = an_app(lambda: None)
    with pytest.raises(FailedPreconditionError, match="not running"):
        await app.publish("orders", b"")
    async with TestApp(app):
        with pytest.raises(FailedPreconditionError, match="is running"):
            await app.start()


async def test_concurrency_bounds_the_handlers_that_run():
    most = running = 0

    async def handle(order: Order) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    async with TestApp(an_app(handle, concurrency=3)) as shop:
        for n in range(10):
            await shop.publish("orders", Order(n), wait=False)
        await shop.idle()
        assert most == 3


async def test_a_long_handler_keeps_its_message():
    async def handle(order: Order) -> None:
        await asyncio.sleep(500)

    async with TestApp(an_app(handle, ack_deadline=10)) as shop:
        await shop.publish("orders", Order(1))
        assert len(shop.calls(handle)) == 1


async def test_a_broker_that_stores_ids_twice_is_told_of_when_an_app_publishes(caplog):
    broker = await connect(clock=VirtualClock())
    broker.capabilities = replace(broker.capabilities, dedupe=False)
    app = App()

    @app.subscriber("orders", "billing")
    @app.publishes("invoices")
    def bill(order: Order) -> Invoice:
        return Invoice(order.id, 1)

    await app.start_on(PubSub(broker=broker), app.bindings())
    await app.stop()
    assert "does not claim 'dedupe'" in caplog.text and "bill (" in caplog.text
