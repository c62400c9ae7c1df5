"""Apps: what they cost over a bare subscription, and a typed handler beside FastStream's."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from fast_depends.msgspec import MsgSpecSerializer
from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, PullSub
from nats.js.api import ConsumerConfig, DeliverPolicy

from benchmarks.jetstream import faster, running
from benchmarks.measure import Figures, Row, Stopwatch, interleaved, table
from penstock import App, Draft, LeaseExtension, Message, PreciseTime, PubSub

MESSAGES = 40_000
TYPED = 10_000
REPEATS = 7
TYPED_REPEATS = 3
# What an App may cost over a bare subscription's handler, in microseconds. For bytes: nothing that
# can be told from noise.
STRUCT_MOST, BYTES_MOST = 2.0, 0.5


class Order(msgspec.Struct):
    id: int
    customer: str
    lines: list[str]


ORDER = msgspec.json.encode(Order(7, "c" * 60, ["x" * 28] * 5))
PAYLOAD = ORDER + b" " * (256 - len(ORDER))


class Countdown:
    def __init__(self, messages: int) -> None:
        self.left = messages
        self.done = asyncio.Event()

    def __call__(self) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()


# What an App costs.


async def filled() -> PubSub:
    pubsub = PubSub()
    topic = await pubsub.topic("orders").create()
    await pubsub.topic("orders-dead").create()
    await topic.subscription("billing").create()
    broker = await pubsub.broker()
    for _ in range(MESSAGES // 1000):
        await broker.publish("orders", [Draft(PAYLOAD) for _ in range(1000)])
    return pubsub


def per_message(began: float) -> float:
    """CPU, not time: what other programs do must not count in so small a difference."""
    return (time.process_time() - began) / MESSAGES


async def bare(handler: Callable[[Countdown], Any]) -> float:
    pubsub, count = await filled(), Countdown(MESSAGES)
    subscription = pubsub.subscription("billing", lease_extension=LeaseExtension())
    subscription.on("message", handler(count))
    began = time.process_time()
    subscription.open()
    await count.done.wait()
    took = per_message(began)
    await pubsub.aclose()
    return took


async def through_app(handler: Callable[[Countdown], Any]) -> float:
    pubsub, count, app = await filled(), Countdown(MESSAGES), App(retry=None)
    app.subscriber("orders", "billing")(handler(count))
    bindings = app.bindings()
    began = time.process_time()
    await app.start_on(pubsub, bindings)
    await count.done.wait()
    took = per_message(began)
    await app.stop()
    return took


def bare_bytes(count: Countdown) -> Callable[[Message], None]:
    def handle(message: Message) -> None:
        assert message.data
        count()
        message.ack()

    return handle


def bare_struct(count: Countdown) -> Callable[[Message], None]:
    decode = msgspec.json.Decoder(Order).decode

    def handle(message: Message) -> None:
        decode(message.data)
        count()
        message.ack()

    return handle


def bare_async(count: Countdown) -> Callable[[Message], Any]:
    decode = msgspec.json.Decoder(Order).decode

    async def handle(message: Message) -> None:
        decode(message.data)
        count()
        message.ack()

    return handle


def app_bytes(count: Countdown) -> Callable[[bytes], None]:
    def handle(body: bytes) -> None:
        assert body
        count()

    return handle


def app_struct(count: Countdown) -> Callable[[Order], None]:
    def handle(order: Order) -> None:  # noqa: ARG001
        count()

    return handle


def app_async(count: Countdown) -> Callable[[Order], Any]:
    async def handle(order: Order) -> None:  # noqa: ARG001
        count()

    return handle


async def differences(
    one: Callable[[], Any], other: Callable[[], Any]
) -> tuple[list[float], float]:
    """Microseconds the one costs more, in pairs and in turns, and what the other costs."""
    found, costs = [], []
    for at in range(REPEATS):
        values = {}
        for way in (one, other) if at % 2 else (other, one):
            gc.collect()
            values[way] = await way()
        found.append((values[one] - values[other]) * 1e6)
        costs.append(values[other] * 1e6)
    return sorted(found), statistics.median(costs)


async def cost_rows() -> list[Row]:
    rows = []
    for what, ours, theirs, most in (
        ("bytes, plain handler", app_bytes, bare_bytes, BYTES_MOST),
        ("a Struct, plain handler", app_struct, bare_struct, STRUCT_MOST),
        ("a Struct, async handler", app_async, bare_async, STRUCT_MOST),
    ):
        values, cost = await differences(partial(through_app, ours), partial(bare, theirs))
        middle = statistics.median(values)
        rows.append(
            Row(
                what,
                f"{middle:+5.2f} us  (of {cost:.2f})",
                f"{values[0]:+.2f} to {values[-1]:+.2f}",
                f"at most {most:g} us",
                middle <= most,
            )
        )
    return rows


# Beside FastStream.


class Typed:
    """Ways to handle `TYPED` orders that wait in a topic, each acked, in one process."""

    def __init__(self, port: int) -> None:
        self.url = f"nats://127.0.0.1:{port}"
        self._runs = 0

    async def prepare(self) -> None:
        async with PubSub(self.url) as pubsub:
            await pubsub.topic("orders").create()
            broker = await pubsub.broker()
            for start in range(0, TYPED, 500):
                ids = range(start, start + 500)
                await broker.publish(
                    "orders", [Draft(PAYLOAD, message_id=f"order-{n}") for n in ids]
                )

    async def penstock(self, *, batch: bool = False) -> float:
        self._runs += 1
        name, count = f"bench-{self._runs}", Countdown(TYPED)
        app = App(self.url, retry=None, dead_letters=None)
        async with PubSub(self.url) as pubsub:
            subscription = await pubsub.topic("orders").subscription(name).create()
            await subscription.seek(PreciseTime.from_ns(0))

        async def handle(order: Order) -> None:  # noqa: ARG001
            count()

        async def handle_all(orders: list[Order]) -> None:
            for _ in orders:
                count()

        if batch:
            app.subscriber("orders", name, batch_size=500)(handle_all)
        else:
            app.subscriber("orders", name)(handle)
        watch = Stopwatch()
        async with app:
            await count.done.wait()
            took = watch.per(TYPED)
        async with PubSub(self.url) as pubsub:
            await pubsub.subscription(name).delete()
        return took

    async def penstock_batches(self) -> float:
        return await self.penstock(batch=True)

    async def faststream(self, *, workers: int | None = None, size: int = 500) -> float:
        self._runs += 1
        count = Countdown(TYPED)
        broker = NatsBroker(self.url, logger=None, serializer=MsgSpecSerializer())

        async def handle(order: Order) -> None:  # noqa: ARG001
            count()

        options: dict[str, Any] = {} if workers is None else {"max_workers": workers}
        subscriber: Any = broker.subscriber
        subscriber(
            "orders",
            stream=JStream("orders", declare=False),
            durable=f"fast-{self._runs}",
            config=ConsumerConfig(max_ack_pending=-1),
            deliver_policy=DeliverPolicy.ALL,
            pull_sub=PullSub(batch_size=size),
            ack_policy=AckPolicy.ACK,
            **options,
        )(handle)
        watch = Stopwatch()
        async with broker:
            await broker.start()
            await count.done.wait()
            return watch.per(TYPED)


async def best_of_faststream(typed: Typed) -> tuple[str, Callable[[], Any]]:
    """The settings it is fastest with, tried out first."""
    ways: dict[str, Callable[[], Any]] = {
        f"{size} a pull, {'a task each' if workers is None else f'{workers} workers'}": partial(
            typed.faststream, workers=workers, size=size
        )
        for size, workers in ((50, None), (100, None), (500, None), (100, 16))
    }
    figures: dict[str, Figures] = await interleaved(1, **ways)
    best = min(figures, key=lambda name: min(figures[name].seconds))
    return best, ways[best]


async def main() -> bool:
    rows = await cost_rows()
    table(f"An App over a bare subscription, memory, {len(PAYLOAD)} B, CPU", rows)
    async with running(sync=False) as (port, _):
        typed = Typed(port)
        await typed.prepare()
        name, best = await best_of_faststream(typed)
        figures = await interleaved(
            TYPED_REPEATS, app=typed.penstock, batches=typed.penstock_batches, faststream=best
        )
        beside = [
            faster("a typed handler, against FastStream", figures["app"], figures["faststream"], 3),
            faster(
                "a typed batch handler, against the same",
                figures["batches"],
                figures["faststream"],
            ),
        ]
    table(f"Orders of {len(PAYLOAD)} B from JetStream; FastStream with {name}", beside)
    return all(row.kept is not False for row in [*rows, *beside])


if __name__ == "__main__":
    asyncio.run(main())
