"""The inbox around the handlers of an app: one effect a message, committed with its mark."""

from contextlib import asynccontextmanager

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, insert, select

from penstock import App, Reject, errors
from penstock.consuming.middleware import inbox, inbox_connection
from penstock.testing import TestApp, make_message
from penstock.transactional import Database, Inbox

pytestmark = pytest.mark.real_time

own = MetaData()
effects = Table("effects", own, Column("n", Integer, primary_key=True), Column("order", Integer))


@asynccontextmanager
async def shop_on(url, handler, **options):
    async with Database(url) as database:
        await database.create_tables(own)
        kept = Inbox(database, "shop")
        await kept.create()
        app = App(retry=options.pop("retry", None))
        app.use(inbox(kept, key=lambda message: message.attributes["key"]))
        app.subscriber("orders", "billing", **options)(handler)
        async with TestApp(app) as shop:
            yield shop, kept


async def written(kept):
    async with kept.database.transaction(reading=True) as connection:
        return sorted((await connection.execute(select(effects.c.order))).scalars())


async def write(order):
    await inbox_connection().execute(insert(effects), {"order": order})


async def bill(order: int) -> None:
    await write(order)


async def test_a_message_that_comes_again_has_one_effect(url):
    async with shop_on(url, bill) as (shop, kept):
        for order, key in ((1, "a"), (1, "a"), (2, "b")):
            await shop.publish("orders", order, attributes={"key": key})
        assert await written(kept) == [1, 2]
        assert (await kept.status()).processed == 2


async def test_a_handler_that_fails_has_no_effect_and_its_message_may_come_again(url):
    tries = []

    async def fragile(order: int) -> None:
        tries.append(order)
        await write(order)
        if len(tries) == 1:
            raise Reject("not-today")

    async with shop_on(url, fragile) as (shop, kept):
        await shop.publish("orders", 1, attributes={"key": "a"})
        assert await written(kept) == []
        [row] = await kept.rows()
        assert (row.event_id, row.status) == ("billing/a", "failed")
        await shop.publish("orders", 1, attributes={"key": "a"})
        assert await written(kept) == [1]


async def test_copies_in_one_batch_have_one_effect(url):
    batches = []

    async def bill_all(orders: list[int]) -> None:
        batches.append(list(orders))
        for order in orders:
            await write(order)

    async with shop_on(url, bill_all, batch_size=3, batch_wait=5.0) as (shop, kept):
        for order, key in ((1, "a"), (1, "a"), (2, "b")):
            await shop.publish("orders", order, attributes={"key": key}, wait=False)
        await shop.idle()
        assert await written(kept) == [1, 2]
        assert [order for batch in batches for order in batch] == [1, 2]


async def test_a_message_of_a_batch_that_fails_is_not_marked(url):
    async with Database(url) as database:
        await database.create_tables(own)
        kept = Inbox(database, "shop")
        await kept.create()
        one, two = (make_message(data=b"1") for _ in range(2))
        async with kept.effects({one: "a", two: "b"}, "orders") as taken:
            assert taken.fresh == [one, two]
            taken.failures[two] = ValueError("no")
        async with kept.effects({one: "a", two: "b"}, "orders") as taken:
            assert taken.fresh == [two]


def test_outside_of_an_inbox_there_is_no_connection():
    with pytest.raises(errors.FailedPreconditionError, match=r"app\.use\(inbox"):
        inbox_connection()
