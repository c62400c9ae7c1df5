"""A tour: a shop whose orders flow through three subscriptions, with failures on the way.

python examples/shop.py              a few seconds, then a table
python examples/shop.py --forever    until Ctrl-C
"""

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter

from penstock import DeadLetterPolicy, FlowControl, Message, PubSub, RetryPolicy, Subscription

ORDERS = 20_000
CUSTOMERS = 500
STEP = 0.1


class Shop:
    """The handlers, and what they saw."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.last: dict[str, int] = {}
        self.out_of_order = 0
        self.shown = 0.0
        self.random = random.Random(7)  # the same tour every time

    async def bill(self, message: Message) -> None:
        """Ordered per customer; one order in 211 is unreadable, some fail once."""
        self.seen["billed"] += 1
        if message.attributes.get("corrupt"):
            raise ValueError("unreadable order")
        if message.delivery_attempt == 1 and self.random.random() < 0.02:
            self.seen["retried"] += 1
            message.nack()
            return
        await asyncio.sleep(0)
        customer, number = str(message.ordering_key), int(message.data)
        self.out_of_order += number < self.last.get(customer, -1)
        self.last[customer] = number
        message.ack()

    async def ship(self, message: Message) -> None:
        """Slow, so its window holds it to fifty at a time."""
        await asyncio.sleep(0.02)
        self.seen["shipped"] += 1
        message.ack()

    def bury(self, message: Message) -> None:
        self.seen["buried"] += 1
        message.ack()


async def main(forever: bool) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    shop = Shop()
    began = time.perf_counter()
    async with PubSub() as pubsub:
        orders = await pubsub.topic("orders").create()
        dead = await pubsub.topic("orders-dead").create()
        billing = await orders.subscription(
            "billing",
            message_ordering=True,
            retry_policy=RetryPolicy(minimum_backoff=0.05, maximum_backoff=0.2),
            dead_letter_policy=DeadLetterPolicy(topic=dead.name, max_delivery_attempts=3),
        ).create()
        shipping = await orders.subscription(
            "shipping",
            filter='attributes.express = "yes"',
            flow_control=FlowControl(max_messages=50),
        ).create()
        graveyard = await dead.subscription("graveyard").create()
        billing.on("message", shop.bill)
        billing.on("error", lambda _: shop.seen.update(["failed"]))
        shipping.on("message", shop.ship)
        graveyard.on("message", shop.bury)
        subscriptions = [billing, shipping, graveyard]
        for subscription in subscriptions:
            subscription.open()

        print("Orders flow through billing (in order per customer), shipping (express only,")
        print("fifty at a time) and, when they cannot be read, the dead letters.\n")
        published = 0
        while not stop.is_set() and (forever or published < ORDERS):
            for _ in range(1000):
                attributes = {"express": "yes" if published % 4 == 0 else "no"}
                if published % 211 == 210:
                    attributes["corrupt"] = "yes"
                await orders.publish_message(
                    str(published).encode(),
                    attributes,
                    ordering_key=f"customer-{published % CUSTOMERS}",
                )
                published += 1
            await progress(published, shop, subscriptions)
            await asyncio.sleep(STEP)
        while not stop.is_set() and await backlog(subscriptions):
            await progress(published, shop, subscriptions)
            await asyncio.sleep(STEP)
        await progress(published, shop, subscriptions)
        reports = [await s.close(timeout=5) for s in subscriptions]
        left = await backlog(subscriptions)

    took = time.perf_counter() - began
    rows = {
        "published": published,
        "billed (attempts)": shop.seen["billed"],
        "  nacked once, retried": shop.seen["retried"],
        "  failed, unreadable": shop.seen["failed"],
        "  out of order": shop.out_of_order,
        "shipped (express)": shop.seen["shipped"],
        "dead letters": shop.seen["buried"],
        "left in the backlog": left,
    }
    print("\n")
    for name, count in rows.items():
        print(f"  {name:<26}{count:>9,}")
    print(f"\n  {published / took:,.0f} orders a second, {took:.1f} s in all")
    complete = left == 0 and shop.out_of_order == 0 and all(r.clean for r in reports)
    return 0 if complete or forever else 1


async def backlog(subscriptions: list[Subscription]) -> int:
    return sum([(await s.describe()).backlog for s in subscriptions])


async def progress(published: int, shop: Shop, subscriptions: list[Subscription]) -> None:
    waiting = await backlog(subscriptions)
    line = (
        f"published {published:>7,}   billed {shop.seen['billed']:>7,}   "
        f"shipped {shop.seen['shipped']:>6,}   waiting {waiting:>6,}"
    )
    if sys.stdout.isatty():
        print(f"\r  {line}", end="", flush=True)
    elif time.monotonic() - shop.shown >= 1:
        shop.shown = time.monotonic()
        print(f"  {line}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A tour of Penstock, in memory.")
    parser.add_argument("--forever", action="store_true", help="go on until Ctrl-C")
    sys.exit(asyncio.run(main(parser.parse_args().forever)))
