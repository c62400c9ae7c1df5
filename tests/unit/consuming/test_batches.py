"""Batch handlers: how batches form, and what becomes of each message in them."""

import asyncio

import pytest

from penstock import App, Message, Reject, Retry, RetryPolicy
from penstock.testing import TestApp, eventually, run_virtual
from tests.support.shop import Invoice, Order

SOON = RetryPolicy(minimum_backoff=1, maximum_backoff=1)


def an_app(handler, **options):
    app = App(retry=SOON)
    app.subscriber("orders", "billing", **options)(handler)
    return app


async def send(shop, *ids):
    for number in ids:
        await shop.publish("orders", Order(number), wait=False)
    await shop.idle()


async def test_a_batch_leaves_when_it_is_full_or_has_waited_long_enough():
    times = []

    async def handle(orders: list[Order]) -> None:
        times.append(asyncio.get_running_loop().time())

    async with TestApp(an_app(handle, batch_size=3, batch_wait=2.0)) as shop:
        began = asyncio.get_running_loop().time()
        await send(shop, 1, 2, 3, 4)
        assert shop.calls(handle) == [[Order(1), Order(2), Order(3)], [Order(4)]]
        assert [round(time - began) for time in times] == [0, 2]


async def test_plain_functions_take_batches_and_messages_beside_them():
    ids = []

    def handle(orders: list[Order], messages: list[Message]) -> None:
        ids.append([message.id for message in messages])

    async with TestApp(an_app(handle)) as shop:
        one = await shop.publish("orders", Order(1), wait=False)
        two = await shop.publish("orders", Order(2))
        assert ids == [[one, two]]
        assert shop.calls(handle) == [[Order(1), Order(2)]]


async def test_what_cannot_be_read_leaves_the_batch_for_the_dead_letters():
    async def handle(orders: list[Order]) -> None:
        pass

    async with TestApp(an_app(handle)) as shop:
        await shop.publish("orders", Order(1), wait=False)
        await shop.publish("orders", b"?", wait=False)
        await shop.publish("orders", Order(2))
        assert shop.calls(handle) == [[Order(1), Order(2)]]
        assert [letter.data for letter in shop.dead()] == [b"?"]


async def test_an_exception_brings_the_whole_batch_back():
    tries = 0

    async def handle(orders: list[Order]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError

    async with TestApp(an_app(handle)) as shop:
        await send(shop, 1, 2)
        assert shop.calls(handle) == [[Order(1), Order(2)]] * 2
        assert not shop.dead()


async def test_a_cancellation_that_a_batch_handler_raises_is_a_failure_like_any():
    async def handle(orders: list[Order]) -> None:
        raise asyncio.CancelledError("what it waited for was cancelled")

    async with TestApp(an_app(handle, max_attempts=2)) as shop:
        await send(shop, 1, 2)
        assert shop.calls(handle) == [[Order(1), Order(2)]] * 2
        assert [letter.reason for letter in shop.dead()] == ["gave-up"] * 2
        assert "what it waited for" in shop.dead()[0].error


@pytest.mark.parametrize("how", ["cancelled", "thrown away"])
async def test_a_batch_whose_task_is_ended_comes_back(how):
    tries = 0

    async def handle(orders: list[Order]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1 and how == "thrown away":
            raise GeneratorExit
        if tries == 1:
            asyncio.current_task().cancel()
            await asyncio.sleep(1)

    async with TestApp(an_app(handle)) as shop:
        await send(shop, 1, 2)
        assert shop.calls(handle) == [[Order(1), Order(2)]] * 2
        assert not shop.dead()


async def test_an_answer_that_cannot_be_given_holds_no_other_message_of_the_batch():
    impossible = Retry("busy")
    impossible.after = float("nan")

    async def handle(orders: list[Order], messages: list[Message]) -> list[object]:
        first = messages[0].delivery_attempt == 1
        return [impossible if first and order.id == 1 else None for order in orders]

    async with TestApp(an_app(handle)) as shop:
        await send(shop, 1, 2, 3)
        assert shop.calls(handle) == [[Order(1), Order(2), Order(3)], [Order(1)]]
        assert not shop.dead()


async def test_stopping_with_a_deadline_ends_though_a_batch_handler_refuses_to():
    refused = []

    async def handle(orders: list[Order]) -> None:
        while not refused:
            try:
                await asyncio.sleep(500)
            except asyncio.CancelledError:
                refused.append(orders)
        await asyncio.sleep(500)

    app = an_app(handle, batch_wait=0.0)
    async with TestApp(app) as shop:
        message_id = await shop.publish("orders", Order(1), wait=False)
        await asyncio.sleep(1)
        async with asyncio.timeout(60):
            report = await app.stop(timeout=2)
        assert report.unfinished == (message_id,)
        assert refused == [[Order(1)]]


async def test_a_batch_may_answer_for_each_message():
    async def handle(orders: list[Order], messages: list[Message]) -> list[object]:
        return [
            {1: None, 2: Retry("busy") if message.delivery_attempt == 1 else None}.get(
                order.id, Reject("no")
            )
            for order, message in zip(orders, messages, strict=True)
        ]

    async with TestApp(an_app(handle)) as shop:
        await send(shop, 1, 2, 3)
        assert shop.calls(handle) == [[Order(1), Order(2), Order(3)], [Order(2)]]
        assert [letter.reason for letter in shop.dead()] == ["no"]


async def test_a_mistake_in_the_answers_of_a_batch_is_the_failure_of_its_message():
    async def handle(orders: list[Order]) -> list[object]:
        return [Reject if order.id == 2 else None for order in orders]

    async with TestApp(an_app(handle, max_attempts=1)) as shop:
        await send(shop, 1, 2)
        [letter] = shop.dead()
    assert "returned the class Reject" in letter.error


async def test_a_batch_may_be_rejected_as_a_whole():
    async with TestApp(an_app(reject_all)) as shop:
        await send(shop, 1, 2)
        assert [letter.reason for letter in shop.dead()] == ["closed", "closed"]


def reject_all(orders: list[Order]) -> Reject:
    return Reject("closed")


async def test_results_belong_to_their_messages_however_batches_form():
    app = App(retry=SOON)
    tries = 0

    @app.subscriber("orders", "billing", batch_size=2)
    @app.publishes("invoices")
    async def bill(orders: list[Order], messages: list[Message]) -> list[Invoice | None]:
        nonlocal tries
        tries += 1
        if tries == 1:
            messages[1].nack()  # As if its ack was lost.
        return [Invoice(order.id) if order.id != 3 else None for order in orders]

    async with TestApp(app) as shop:
        await send(shop, 1, 2, 3, 4)
        assert sorted(i.order for i in shop.published("invoices")) == [1, 2, 4]
        assert sum(map(len, shop.calls(bill))) == 5


async def test_a_batch_with_the_wrong_number_of_results_fails_and_says_so(caplog):
    def handle(orders: list[Order]) -> list[Invoice]:
        return [Invoice(1)]

    async with TestApp(an_app(handle, max_attempts=1)) as shop:
        await send(shop, 1, 2)
        assert [letter.reason for letter in shop.dead()] == ["gave-up"] * 2
        assert "returned 1 results for a batch of 2" in shop.dead()[0].error


async def test_stopping_sends_off_what_has_gathered():
    async def handle(orders: list[Order]) -> None:
        await asyncio.sleep(1)

    app = an_app(handle, batch_wait=500.0)
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1), wait=False)
        await asyncio.sleep(1)
        report = await app.stop()
        assert report.clean
        assert shop.calls(handle) == [[Order(1)]]


async def test_stopping_with_a_deadline_gives_a_batch_back():
    ended = []

    async def handle(orders: list[Order]) -> None:
        try:
            await asyncio.sleep(500)
        finally:
            ended.append(orders)

    app = an_app(handle, batch_wait=0.0)
    async with TestApp(app) as shop:
        message_id = await shop.publish("orders", Order(1), wait=False)
        await asyncio.sleep(1)
        report = await app.stop(timeout=2)
        assert report.unfinished == (message_id,)
        assert ended == [[Order(1)]]


@pytest.mark.parametrize("what", ["the app", "its subscription"])
async def test_a_batch_handler_may_stop_what_it_runs_in(what):
    reports = []

    async def handle(orders: list[Order]) -> None:
        async with asyncio.timeout(60):
            [subscription] = app.subscriptions
            reports.append(await (app.stop() if what == "the app" else subscription.close()))

    app = an_app(handle, batch_wait=0.0)
    async with TestApp(app) as shop:
        message_id = await shop.publish("orders", Order(1), wait=False)
        await eventually(lambda: reports)
        assert reports[0].unfinished == (message_id,)
        assert app.running is (what != "the app")


async def test_as_many_batches_run_as_concurrency_allows():
    most = running = 0

    async def handle(orders: list[Order]) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    async with TestApp(an_app(handle, batch_size=2, concurrency=3)) as shop:
        await send(shop, *range(20))
        assert most == 3


def test_batches_that_want_the_program_to_end_let_the_app_close():
    closed = []

    async def handle(orders: list[Order]) -> None:
        await asyncio.sleep(1)
        raise SystemExit(3)

    async def main():
        app = an_app(handle, batch_size=1)
        try:
            async with app:
                for number in range(3):
                    await app.publish("orders", Order(number))
                await asyncio.sleep(1000)
        finally:
            closed.append((asyncio.get_running_loop().time(), app.ready))

    with pytest.raises(SystemExit):
        run_virtual(main())
    assert closed == [(1.0, False)]
