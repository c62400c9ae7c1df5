"""FastAPI: a request publishes an order, and the same process handles it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

from penstock import App


class Order(BaseModel):
    id: int
    item: str


packed: list[str] = []
app = App()  # or App("nats://…"): then any process of the app handles it


@app.subscriber("orders", "packing")
async def pack(order: Order) -> None:
    packed.append(order.item)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with app:  # receives while the server runs, and drains before it ends
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
async def take(order: Order) -> str:
    await app.publish("orders", order, message_id=f"order-{order.id}")
    return "thank you"


if __name__ == "__main__":
    with TestClient(web) as client:  # as `uvicorn fastapi_orders:web` would
        print(client.post("/orders", json={"id": 1, "item": "a book"}).text)
        print(client.post("/orders", json={"id": "one"}).status_code)
    print("packed:", *packed)

# prints:
# "thank you"
# 422
# packed: a book
