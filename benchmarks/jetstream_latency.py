"""How long a message takes from `publish` to its handler, one at a time, beside nats-py.

Messages take turns between the clients in one event loop, in an order that is drawn anew for each
turn: whatever the machine does meanwhile, it does to all of them, and each comes as often behind
any of them as the others do.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from benchmarks.jetstream import PAYLOAD, running
from benchmarks.measure import Row, table
from penstock import Message, PubSub

# So many that the slowest hundredth is more than a few odd moments of the machine: with 5,000 its
# ratio differs by 0.1 from run to run.
MESSAGES = 20_000
WARM_UP = 100
# Between messages, so that one's acks and next pulls are not in the next one's way.
PAUSE = 0.0005


class Arrivals:
    """When the message that is under way has come."""

    def __init__(self) -> None:
        self._arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def note(self) -> None:
        self._arrived.set_result(time.perf_counter())

    async def after(self, publish: Callable[[], Awaitable[object]]) -> float:
        """Seconds from the call of `publish` to the handler's."""
        self._arrived = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        await publish()
        took = await self._arrived - began
        await asyncio.sleep(PAUSE)
        return took


@asynccontextmanager
async def penstock(
    pubsub: PubSub, arrivals: Arrivals
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    topic = await pubsub.topic("ours").create()
    sub = await topic.subscription("latency").create()

    def handle(message: Message) -> None:
        arrivals.note()
        message.ack()

    sub.on("message", handle)
    sub.open()
    yield lambda: topic.publish_message(PAYLOAD)
    await sub.close()


@asynccontextmanager
async def nats_py_push(
    context: JetStreamContext, arrivals: Arrivals
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    async def handle(message: Msg) -> None:
        arrivals.note()
        await message.ack()

    sub = await context.subscribe("pushed", cb=handle, manual_ack=True)
    yield lambda: context.publish("pushed", PAYLOAD)
    await sub.unsubscribe()


@asynccontextmanager
async def nats_py_pull(
    context: JetStreamContext, arrivals: Arrivals
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    sub = await context.pull_subscribe("pulled", "latency")

    async def fetch() -> None:
        while True:
            for message in await sub.fetch(1, timeout=600):
                arrivals.note()
                await message.ack()

    fetching = asyncio.ensure_future(fetch())
    yield lambda: context.publish("pulled", PAYLOAD)
    fetching.cancel()
    await asyncio.wait([fetching])


async def main() -> bool:
    async with running(sync=False) as (port, _):
        url = f"nats://127.0.0.1:{port}"
        client: Client = await nats.connect(url)
        async with PubSub(url) as pubsub:
            for topic in ("pushed", "pulled"):
                await pubsub.topic(topic).create()
            arrivals, context = Arrivals(), client.jetstream()
            async with (
                penstock(pubsub, arrivals) as ours,
                nats_py_push(context, arrivals) as pushed,
                nats_py_pull(context, arrivals) as pulled,
            ):
                took: dict[str, list[float]] = {"penstock": [], "pushed": [], "pulled": []}
                turns = [("penstock", ours), ("pushed", pushed), ("pulled", pulled)]
                for _ in range(MESSAGES + WARM_UP):
                    random.shuffle(turns)
                    for name, publish in turns:
                        took[name].append(await arrivals.after(publish))
        await client.close()
    figures = {name: sorted(seconds[WARM_UP:]) for name, seconds in took.items()}
    rows = [
        _row(part, figures["penstock"], figures[peer], at, peer)
        for at, part in ((0.5, "p50"), (0.99, "p99"))
        for peer in ("pushed", "pulled")
    ]
    table(f"From publish to handler on JetStream, {len(PAYLOAD)} B, one at a time", rows)
    return all(row.kept is not False for row in rows)


def _row(part: str, ours: list[float], theirs: list[float], at: float, peer: str) -> Row:
    mine, other = ours[int(len(ours) * at)], theirs[int(len(theirs) * at)]
    return Row(
        what=f"{part}, against nats-py {peer}",
        value=f"{mine / other:5.2f} x  ({mine * 1e6:.0f} us)",
        spread=f"{other * 1e6:.0f} us",
        promise="at most 1 x",
        kept=mine <= other,
    )


if __name__ == "__main__":
    asyncio.run(main())
