"""An order service: typed, retried, observed. `penstock run order_service:app --workers 4`."""

import os

import msgspec

from penstock import App, Reject, RetryPolicy
from penstock.consuming.middleware import metrics, timeout, tracing


class Order(msgspec.Struct):
    id: int
    amount: float


class Invoice(msgspec.Struct):
    order: int
    total: float


app = App(os.environ.get("PENSTOCK_URL", "memory://"), retry=RetryPolicy(minimum_backoff=1))
app.use(tracing(), metrics(), timeout(30))


@app.subscriber("orders", "billing", dead_letters="orders-dead", max_attempts=5, concurrency=16)
@app.publishes("invoices")
async def bill(order: Order) -> Invoice:
    if order.amount <= 0:
        raise Reject("nothing-to-pay")
    return Invoice(order.id, total=round(order.amount * 1.2, 2))
