"""Litestar: a request publishes an order, and the same process handles it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from litestar import Litestar, post
from litestar.params import JSONBody
from litestar.testing import TestClient

from penstock import App


class Order(msgspec.Struct):
    id: int
    item: str


packed: list[str] = []
app = App()  # or App("nats://…"): then any process of the app handles it


@app.subscriber("orders", "packing")
async def pack(order: Order) -> None:
    packed.append(order.item)


@asynccontextmanager
async def lifespan(_: Litestar) -> AsyncIterator[None]:
    async with app:  # receives while the server runs, and drains before it ends
        yield


@post("/orders", status_code=202)
async def take(data: JSONBody[Order]) -> str:
    await app.publish("orders", data, message_id=f"order-{data.id}")
    return "thank you"


web = Litestar([take], lifespan=[lifespan], logging_config=None)


if __name__ == "__main__":
    with TestClient(web) as client:  # as `litestar --app litestar_orders:web run` would
        print(client.post("/orders", json={"id": 1, "item": "a book"}).text)
        print(client.post("/orders", json={"id": "one"}).status_code)
    print("packed:", *packed)

# prints:
# thank you
# 400
# packed: a book
