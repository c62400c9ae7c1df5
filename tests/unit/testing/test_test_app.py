"""The app under test, under test."""

import asyncio

import pytest

from penstock import App, Retry
from penstock.testing import TestApp
from tests.support.shop import Invoice, Order

app = App("nats://nobody.invalid", provision="check")


@app.subscriber("orders", "billing")
@app.publishes("invoices")
async def bill(order: Order) -> Invoice:
    await asyncio.sleep(1)
    return Invoice(order.id)


@app.subscriber("invoices", "archive")
def keep(invoice: Invoice) -> None:
    pass


async def test_publish_waits_for_everything_that_comes_of_it():
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1))
        assert shop.calls(keep) == [Invoice(1)]


async def test_every_test_begins_with_nothing():
    for _ in range(2):
        async with TestApp(app) as shop:
            assert shop.calls(bill) == shop.published("invoices") == shop.dead() == []
            await shop.publish("orders", Order(1))
            assert len(shop.calls(bill)) == len(shop.records("invoices")) == 1


@pytest.mark.real_time
async def test_it_works_in_real_time_too():
    quick = App()

    @quick.subscriber("orders", "billing")
    def take(order: Order) -> None:
        pass

    async with TestApp(quick) as shop:
        await shop.publish("orders", Order(1))
        assert shop.calls(take) == [Order(1)]


async def test_what_never_settles_fails_instead_of_waiting_for_ever():
    stubborn = App(max_attempts=None)
    stubborn.subscriber("orders", "billing")(lambda: Retry("never"))
    async with TestApp(stubborn) as shop:
        await shop.publish("orders", b"", wait=False)
        with pytest.raises(AssertionError, match="1 in 'billing'"):
            await shop.idle(within=600)


async def test_asking_for_what_is_not_there_fails():
    async with TestApp(app) as shop:
        with pytest.raises(AssertionError, match="No topic 'invoice'; there are"):
            shop.records("invoice")
        with pytest.raises(AssertionError, match="not a handler of this app"):
            shop.calls(print)
