"""`penstock run`: processes that start, drain, are killed and started again."""

import asyncio
import os
import re
import signal
import time

import pytest

from penstock import PubSub
from tests.support.processes import Running, page
from tests.support.servers import NatsServer

APP = '''
import asyncio, os, sys
import msgspec
from penstock import App

class Order(msgspec.Struct):
    id: int

app = App("nats://nobody.invalid")

def say(line):
    """In one write, so that the lines of two processes do not mix in their pipe."""
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()

@app.subscriber("orders", "{name}")
async def bill(order: Order) -> None:
    say(f"began {{order.id}} in {{os.getpid()}}")
    await asyncio.sleep(order.id)
    say(f"done {{order.id}} {word}")
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def name(request):
    return f"billing-{abs(hash(request.node.name))}"


@pytest.fixture
def folder(tmp_path, name):
    write(tmp_path, name)
    return tmp_path


def write(folder, name, word="first"):
    (folder / "shop.py").write_text(APP.format(name=name, word=word))


def publish(server, *ids):
    async def main():
        async with PubSub(server.url) as pubsub:
            for number in ids:
                await pubsub.topic("orders").publish_message(b'{"id": %d}' % number)

    asyncio.run(main())


def run(folder, server, *words):
    return Running(folder, "run", "shop:app", "--url", server.url, *words)


def address(said):
    return re.search(r"http://127.0.0.1:\d+(?=/)", said)[0]


def workers(said):
    return [int(pid) for pid in re.findall(r"in (\d+)", said)]


def test_an_app_runs_tells_how_it_is_and_finishes_what_is_in_hand(folder, server):
    with run(folder, server, "--health-port", "0") as app:
        app.wait_for(lambda said: "Receiving from" in said)
        assert page(address(app.said) + "/live") == (200, "alive\n")
        assert page(address(app.said) + "/ready") == (200, "ready\n")
        publish(server, 2)
        app.wait_for(lambda said: "began 2" in said)
        assert app.end() == 0
        assert "done 2" in app.said and "nothing was left" in app.said


def test_draining_has_a_deadline(folder, server):
    with run(folder, server, "--drain", "0.5") as app:
        app.wait_for(lambda said: "Receiving from" in said)
        publish(server, 500)
        app.wait_for(lambda said: "began 500" in said)
        assert app.end() == 0
        assert "to be delivered again: orders-" in app.said


BLOCKING = """
import asyncio, threading
from penstock import App

app = App("memory://")

@app.subscriber("orders", "billing", blocking=True)
def bill(order: bytes) -> None:
    print("began", flush=True)
    threading.Event().wait()

@app.lifespan
async def life():
    yield
    print("left", flush=True)

@app.lifespan
async def order():
    async def publish():
        while not app.ready:
            await asyncio.sleep(0.01)
        await app.publish("orders", b"1")
    async with asyncio.TaskGroup() as group:
        group.create_task(publish())
        yield
"""


def test_a_blocking_function_that_never_returns_does_not_keep_the_process(tmp_path):
    (tmp_path / "shop.py").write_text(BLOCKING)
    with Running(tmp_path, "run", "shop:app", "--drain", "0.5") as app:
        app.wait_for(lambda said: "began" in said)
        assert app.end() == 0
        assert "to be delivered again" in app.said and "left" in app.said


def test_a_second_signal_ends_it_at_once(folder, server):
    with run(folder, server) as app:
        app.wait_for(lambda said: "Receiving from" in said)
        publish(server, 500)
        app.wait_for(lambda said: "began 500" in said)
        app.process.send_signal(signal.SIGTERM)
        app.wait_for(lambda said: "Draining" in said)
        assert app.end(signal.SIGINT) == 1
        assert "Stopped at once" in app.said


STUBBORN = """
import asyncio, threading, time
from penstock import App

app = App("memory://")

@app.subscriber("orders", "billing")
{handler}

@app.lifespan
async def order():
    async def publish():
        while not app.ready:
            await asyncio.sleep(0.01)
        await app.publish("orders", b"1")
    async with asyncio.TaskGroup() as group:
        group.create_task(publish())
        yield
"""
BLOCKS = """
def bill(order: bytes) -> None:
    print("began", flush=True)
    while True:
        time.sleep(60)
"""
BLOCKS_IN_C = """
def bill(order: bytes) -> None:
    # Where Python looks for no signals.
    import ctypes
    print("began", flush=True)
    while ctypes.CDLL(None).usleep(900_000) <= 0: ...
"""
REFUSES = """
async def bill(order: bytes) -> None:
    print("began", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
"""
SPINS = """
async def bill(order: bytes) -> None:
    print("began", flush=True)
    while True: ...
"""


@pytest.mark.parametrize("handler", [BLOCKS, BLOCKS_IN_C, REFUSES, SPINS])
def test_a_second_signal_ends_it_at_once_whatever_its_handler_does(tmp_path, handler):
    (tmp_path / "shop.py").write_text(STUBBORN.format(handler=handler))
    with Running(tmp_path, "run", "shop:app") as app:
        app.wait_for(lambda said: "began" in said)
        app.process.send_signal(signal.SIGTERM)
        assert app.end(signal.SIGINT) == 1
        assert app.said.count("Stopped at once: what was in hand will be delivered again\n") == 1
        assert "Traceback" not in app.said


FORKS = """
def bill(order: bytes) -> None:
    import os, signal
    hears, says = os.pipe()
    child = os.fork()
    if not child:
        os.write(says, b"here")
        time.sleep(600)
    os.read(hears, 4)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    print(f"began; the child ended by {os.WTERMSIG(status)}", flush=True)
"""


def test_a_signal_to_a_child_that_a_handler_forked_is_the_childs_own(tmp_path):
    (tmp_path / "shop.py").write_text(STUBBORN.format(handler=FORKS))
    with Running(tmp_path, "run", "shop:app") as app:
        app.wait_for(lambda said: "the child ended by 15" in said)
        assert "Draining" not in app.said
        assert app.end() == 0
        assert "nothing was left" in app.said


@pytest.mark.parametrize("handler", [BLOCKS, REFUSES])
def test_draining_has_a_deadline_whatever_a_handler_does(tmp_path, handler):
    (tmp_path / "shop.py").write_text(STUBBORN.format(handler=handler))
    with Running(tmp_path, "run", "shop:app", "--drain", "0.5") as app:
        app.wait_for(lambda said: "began" in said)
        assert app.end() in (0, 1)
        assert "delivered again" in app.said


def test_a_process_that_dies_is_started_again_and_all_end_together(folder, server):
    with run(folder, server, "--workers", "2", "--health-port", "0") as app:
        app.wait_for(lambda said: said.count("Receiving from") == 2)
        ready = address(app.said) + "/ready"
        wait_until(lambda: page(ready) == (200, "2 of 2 ready\n"))
        publish(server, 500)
        app.wait_for(lambda said: "began 500" in said)
        [first] = workers(app.said)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: page(ready)[0] == 503)
        app.wait_for(lambda said: said.count("Receiving from") == 3)
        assert f"Process {first} ended with -9; starting another" in app.said
        wait_until(lambda: page(ready)[0] == 200)
        assert app.end() == 0
    assert app.said.count("nothing was left") == 2


@pytest.mark.parametrize("workers", ["1", "2"])
def test_metrics_are_served_for_all_processes_together(folder, server, name, workers):
    with run(folder, server, "--workers", workers, "--metrics-port", "0") as app:
        app.wait_for(lambda said: said.count("Receiving from") == int(workers))
        publish(server, *[0] * 50)
        app.wait_for(lambda said: said.count("done 0") == 50)
        label = f'messaging_destination_subscription_name="{name}"'
        handled = f'messaging_process_duration_seconds_count{{{label},outcome="done"}} 50.0'
        url = address(app.said) + "/metrics"
        wait_until(lambda: handled in page(url)[1])
        wait_until(lambda: f"penstock_backlog_messages{{{label}}}" in page(url)[1])
        assert app.end() == 0


def test_processes_whose_supervisor_is_killed_drain_and_end(folder, server):
    with run(folder, server, "--workers", "2") as app:
        app.wait_for(lambda said: said.count("Receiving from") == 2)
        app.end(signal.SIGKILL)
        wait_until(lambda: app.said.count("nothing was left") == 2)
        assert app.said.count("The supervisor is gone") == 2


def test_a_change_of_the_source_starts_it_anew(folder, server, name):
    with run(folder, server, "--reload") as app:
        app.wait_for(lambda said: "Receiving from" in said)
        (folder / "shop.py").write_text("this is not python")
        app.wait_for(lambda said: "waiting for a change" in said)
        write(folder, name, "anew")
        app.wait_for(lambda said: said.count("Receiving from") == 2)
        publish(server, 0)
        app.wait_for(lambda said: "done 0 anew" in said)
        assert app.end() == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_app_that_is_wrong_says_so_and_ends(folder, server, workers):
    with (folder / "shop.py").open("a") as source:
        source.write("@app.subscriber('orders', 'other')\ndef second(order): ...\n")
    with run(folder, server, "--workers", workers) as app:
        assert app.process.wait(120) == 78
        assert "Parameter 'order' of second" in app.said


@pytest.mark.parametrize("drain", ["nan", "inf", "-1"])
def test_a_drain_that_is_no_time_is_refused(folder, drain):
    with Running(folder, "run", "shop:app", "--drain", drain) as app:
        assert app.process.wait(120) != 0
        assert "Traceback" not in app.said and "--drain" in app.said


def test_several_processes_need_a_broker_that_they_share(folder, server):
    with Running(folder, "run", "shop:app", "--workers", "2", "--url", "memory://") as app:
        assert app.process.wait(120) == 78
        assert "memory:// is one process's own" in app.said


def test_it_can_be_ended_while_it_waits_for_its_broker(folder):
    words = ("--url", "nats://192.0.2.1", "--health-port", "0")
    with Running(folder, "run", "shop:app", *words) as app:
        app.wait_for(lambda said: "/ready" in said)
        assert app.end() in (0, 1)


def wait_until(condition, within=120.0):
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
