"""Processes of an app, killed at random: every order has exactly one invoice."""

import asyncio
import os
import random
import re
import signal
import time
from collections import Counter

import pytest
from tests.support.processes import Running
from tests.support.servers import NatsServer

from penstock import PubSub

ORDERS = 4000
SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))

APP = """
import asyncio, os, random, sys
import msgspec
from penstock import App

class Order(msgspec.Struct):
    id: int

class Invoice(msgspec.Struct):
    order: int

app = App("nats://nobody.invalid", max_attempts=None)

@app.lifespan
async def here():
    sys.stdout.write(f"process {os.getpid()}\\n")
    sys.stdout.flush()
    yield

# A short deadline, so that what a killed process held comes back within the duplicate window.
@app.subscriber("orders", "billing", ack_deadline=3, concurrency=50)
@app.publishes("invoices")
async def bill(order: Order) -> Invoice:
    await asyncio.sleep(random.random() * 0.05)
    return Invoice(order.id)
"""


def processes(said):
    return {int(pid) for pid in re.findall(r"^process (\d+)$", said, re.MULTILINE)}


def kill(pids, chances):
    """One of those that live, with nothing said before."""
    for pid in chances.sample(sorted(pids), len(pids)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        return 1
    return 0


async def publish_all(url, seconds):
    async with PubSub(url) as pubsub:
        orders = pubsub.topic("orders")
        for number in range(ORDERS):
            await orders.publish_message(b'{"id": %d}' % number, message_id=f"order-{number}")
            await asyncio.sleep(seconds / ORDERS)


async def invoices(url):
    """How many there are of each order, and how many orders are not settled."""
    async with PubSub(url) as pubsub:
        log = (await pubsub.broker()).log
        found = Counter()
        async for records in log.read("invoices", 1, (await log.extent("invoices")).last):
            found.update(record.data for record in records)
        waiting = (await pubsub.subscription("billing").describe()).backlog
    return found, waiting


@pytest.mark.timeout(600)
def test_every_order_has_one_invoice_however_often_processes_are_killed(tmp_path):
    chances = random.Random(os.environ.get("CHAOS_SEED", "7"))
    (tmp_path / "shop.py").write_text(APP)
    with NatsServer(tmp_path / "nats") as server:
        words = ("run", "shop:app", "--url", server.url, "--workers", "2")
        with Running(tmp_path, *words) as app:
            app.wait_for(lambda said: said.count("Receiving from") == 2)
            killed = asyncio.run(publish_and_kill(app, server.url, chances))
            until = time.monotonic() + 120
            found, waiting = asyncio.run(invoices(server.url))
            while waiting and time.monotonic() < until:
                time.sleep(1)
                found, waiting = asyncio.run(invoices(server.url))
            assert app.end() == 0
    expected = {b'{"order":%d}' % number for number in range(ORDERS)}
    doubled = [body for body, count in found.items() if count > 1]
    print(
        f"\n{ORDERS} orders, {killed} kills: {len(expected - found.keys())} without an invoice, "
        f"{len(doubled)} with several, {waiting} waiting"
    )
    assert killed > SECONDS / 10
    assert waiting == 0
    assert found.keys() == expected
    assert not doubled


async def publish_and_kill(app, url, chances):
    publishing = asyncio.ensure_future(publish_all(url, SECONDS))
    killed = 0
    while not publishing.done():
        await asyncio.sleep(chances.uniform(0.5, 4))
        killed += kill(processes(app.said), chances)
    await publishing
    return killed
