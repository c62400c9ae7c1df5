from order_service import Invoice, Order, app
from penstock.testing import TestApp


async def test_orders_are_billed_and_nonsense_is_kept() -> None:
    async with TestApp(app) as shop:
        await shop.publish("orders", Order(1, amount=100))
        await shop.publish("orders", Order(2, amount=-5))
        assert shop.published("invoices") == [Invoice(1, total=120)]
        assert [letter.reason for letter in shop.dead()] == ["nothing-to-pay"]
