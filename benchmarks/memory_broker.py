"""Publish → handler → ack in one process, and how it depends on what is already there."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable

from benchmarks.measure import Row, Stopwatch, interleaved, ratio_row, ratios, table
from penstock import Draft, FlowControl, Message, PubSub, Streaming
from penstock.brokers.memory import MemoryBroker

PAYLOAD = bytes(256)
MESSAGES = 100_000
FLAT_MESSAGES = 50_000
BACKLOG = 1_000_000
LEASES = 100_000
REPEATS = 7


async def through_a_queue() -> float:
    """The floor: the same payload through an asyncio.Queue between two tasks."""
    queue: asyncio.Queue[bytes] = asyncio.Queue(1000)

    async def put() -> None:
        for _ in range(MESSAGES):
            await queue.put(PAYLOAD)

    async def get() -> None:
        for _ in range(MESSAGES):
            await queue.get()

    watch = Stopwatch()
    await asyncio.gather(put(), get())
    return watch.per(MESSAGES)


class Counting:
    """A handler that acks and counts down; `at_end` is called with the last message."""

    def __init__(self, messages: int, at_end: Callable[[], None] = lambda: None) -> None:
        self.left = messages
        self.done = asyncio.Event()
        self.at_end = at_end

    def plain(self, message: Message) -> None:
        message.ack()
        self.left -= 1
        if not self.left:
            self.done.set()
            self.at_end()

    async def asynchronous(self, message: Message) -> None:
        self.plain(message)


async def through_penstock(*, asynchronous: bool = False, ordered: bool = False) -> float:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("orders").create()
        sub = await topic.subscription("billing", message_ordering=ordered).create()
        counting = Counting(MESSAGES)
        sub.on("message", counting.asynchronous if asynchronous else counting.plain)
        sub.open()
        keys = [f"key-{n}" if ordered else None for n in range(1000)]
        watch = Stopwatch()
        for n in range(MESSAGES):
            await topic.publish_message(PAYLOAD, ordering_key=keys[n % 1000])
        await counting.done.wait()
        return watch.per(MESSAGES)


class Flat:
    """Publish, handle and ack `FLAT_MESSAGES` while something large is already there."""

    def __init__(self, *, backlog: int = 0, leases: int = 0) -> None:
        self.backlog = backlog
        self.leases = leases
        self.pubsub = PubSub()

    async def prepare(self) -> None:
        self.topic = await self.pubsub.topic("orders").create()
        self.sub = await self.topic.subscription("billing", ack_deadline=600).create()
        broker = await self.pubsub.broker()
        held = max(self.backlog, self.leases)
        for _ in range(held // 1000):
            await broker.publish("orders", [Draft(PAYLOAD) for _ in range(1000)])
        taken = 0
        while taken < self.leases:
            taken += len(await broker.pull("billing", max_messages=1000, max_bytes=10**9, wait=0))

    async def __call__(self) -> float:
        # Pausing at the end: with a backlog there is always more to handle.
        counting = Counting(FLAT_MESSAGES, self.sub.pause)
        self.sub.on("message", counting.plain)
        self.sub.open()
        watch = Stopwatch()
        for _ in range(FLAT_MESSAGES):
            await self.topic.publish_message(PAYLOAD)
        await counting.done.wait()
        took = watch.per(FLAT_MESSAGES)
        self.sub.off("message", counting.plain)
        await self.sub.close(timeout=0)
        return took


async def client_memory(backlog: int) -> tuple[int, int]:
    """Peak bytes and messages a client with a slow handler and a window of 1000 holds."""
    broker = MemoryBroker()
    async with PubSub(broker=broker) as pubsub:
        topic = await pubsub.topic("orders").create()
        sub = await topic.subscription(
            "billing", flow_control=FlowControl(max_messages=1000), streaming=Streaming()
        ).create()
        for _ in range(backlog // 1000):
            await broker.publish("orders", [Draft(PAYLOAD) for _ in range(1000)])
        most = handled = 0
        enough = asyncio.Event()

        async def slow(message: Message) -> None:
            nonlocal most, handled
            assert sub.stream is not None
            most = max(most, sub.stream.statistics().messages)
            await asyncio.sleep(0.01)
            message.ack()
            handled += 1
            if handled == 20_000:
                enough.set()

        sub.on("message", slow)
        tracemalloc.start()
        sub.open()
        await enough.wait()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await sub.close(timeout=0)
        return peak, most


async def main() -> bool:
    print(f"One process, {len(PAYLOAD)} B, median of {REPEATS}, ratios taken in pairs")
    figures = await interleaved(
        REPEATS,
        queue=through_a_queue,
        plain=through_penstock,
        asynchronous=lambda: through_penstock(asynchronous=True),
        ordered=lambda: through_penstock(ordered=True),
    )
    queue = figures["queue"]
    rows = [
        Row("asyncio.Queue(1000), put and get", f"1.00 x  ({queue.median * 1e6:.2f} us)"),
        ratio_row(
            "publish, plain handler, ack",
            ratios(figures["plain"], queue),
            8,
            figures["plain"].median,
        ),
    ]
    for name, what in (
        ("asynchronous", "publish, async handler, ack"),
        ("ordered", "the same, 1000 ordering keys, plain handler"),
    ):
        values = ratios(figures[name], queue)
        cost = f"{figures[name].median * 1e6:.2f} us"
        spread = f"{values[0]:.2f} to {values[-1]:.2f}"
        rows.append(Row(what, f"{values[len(values) // 2]:5.2f} x  ({cost})", spread))
    table("Cost of a message, against a queue", rows)

    empty, backlog, leases = Flat(), Flat(backlog=BACKLOG), Flat(leases=LEASES)
    for flat in (empty, backlog, leases):
        await flat.prepare()
    figures = await interleaved(REPEATS, empty=empty, backlog=backlog, leases=leases)
    flat_rows = [
        ratio_row(what, ratios(figures[name], figures["empty"]), 1.3, figures[name].median)
        for name, what in (
            ("backlog", f"with a backlog of {BACKLOG:,}"),
            ("leases", f"with {LEASES:,} leases open"),
        )
    ]
    table("Cost of a message, against an empty broker", flat_rows)
    for flat in (empty, backlog, leases):
        await flat.pubsub.aclose()
    del empty, backlog, leases

    small, most_small = await client_memory(20_000)
    large, most_large = await client_memory(BACKLOG)
    memory_rows = [
        Row("peak, backlog of 20,000", f"{small / 2**20:.1f} MiB", f"{most_small} messages"),
        Row(
            f"peak, backlog of {BACKLOG:,}",
            f"{large / 2**20:.1f} MiB",
            f"{most_large} messages",
            "at most 1.3 x",
            large <= 1.3 * small and most_large <= 1000,
        ),
    ]
    table("Memory of a client with a slow handler and a window of 1000", memory_rows)
    return all(row.kept is not False for row in [*rows, *flat_rows, *memory_rows])
