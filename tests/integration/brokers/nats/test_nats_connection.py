"""The connection itself: calls that are cancelled, loops that end, a server that talks nonsense."""

import asyncio
import contextlib

import pytest

from penstock import Draft, PubSub
from penstock.errors import ClosedError, PenstockError, UnavailableError
from penstock.message import Settlement, Verb
from penstock.testing import eventually
from penstock.testing.faults import faulty_proxy
from tests.support.brokers import publish_when_connected, stored
from tests.support.servers import NatsServer

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


@contextlib.asynccontextmanager
async def behind_proxy(server, timeout=5):
    async with (
        faulty_proxy("127.0.0.1", server.port) as proxy,
        PubSub(f"nats://127.0.0.1:{proxy.port}?timeout={timeout}") as pubsub,
    ):
        yield proxy, pubsub


def client_of(broker):
    return broker._connection._client


def reconnects(broker):
    return client_of(broker).stats["reconnects"]


async def cancelled(call):
    """Run it for a while and give it up."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.05)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_answers_to_calls_that_were_given_up_do_no_harm(server):
    async with behind_proxy(server) as (proxy, pubsub):
        topic = await pubsub.topic("given-up").create()
        sub = await topic.subscription("given-up-sub").create()
        broker = await pubsub.broker()
        await topic.publish_message(b"first")
        [delivery] = await broker.pull(sub.name, max_messages=1, max_bytes=100, wait=5)
        settlement = Settlement(delivery.ack_id, Verb.NACK)
        proxy.freeze()
        await cancelled(broker.ping())
        await cancelled(broker.pull(sub.name, max_messages=5, max_bytes=100, wait=5))
        await cancelled(broker.publish(topic.name, [Draft.of(b"second")]))
        await cancelled(broker.settle(sub.name, [settlement]))
        await cancelled(sub.describe())
        await cancelled(pubsub.topics())
        proxy.thaw()
        assert await broker.ping() < 60
        found = set()
        while found != {b"first", b"second"}:
            for d in await broker.pull(sub.name, max_messages=5, max_bytes=100, wait=5):
                found.add(d.record.data)
        assert reconnects(broker) == 0


async def test_a_ping_that_timed_out_does_not_end_the_connection(server):
    async with behind_proxy(server, timeout=0.2) as (proxy, pubsub):
        broker = await pubsub.broker()
        proxy.freeze()
        with pytest.raises(UnavailableError, match="does not answer"):
            await broker.ping()
        proxy.thaw()
        for _ in range(20):
            with contextlib.suppress(UnavailableError):
                await broker.ping()
                break
        assert reconnects(broker) == 0


async def test_calls_cancelled_at_any_moment_leave_the_connection_as_it_was(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("any-moment").create()
        sub = await topic.subscription("any-moment-sub", ack_deadline=2).create()
        broker = await pubsub.broker()
        calls = [
            broker.ping,
            sub.describe,
            lambda: broker.pull(sub.name, max_messages=5, max_bytes=100, wait=1),
            lambda: broker.publish(topic.name, [Draft.of(b"x")]),
        ]
        for turn in range(40):
            tasks = [asyncio.ensure_future(call()) for call in calls]
            for _ in range(turn):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await broker.ping()
        await topic.publish_message(b"last")
        seen = set()
        while b"last" not in seen:
            for d in await broker.pull(sub.name, max_messages=9, max_bytes=10**4, wait=5):
                seen.add(d.record.data)
                await broker.settle(sub.name, [Settlement(d.ack_id, Verb.ACK)])
        assert reconnects(broker) == 0


async def test_breaking_pausing_and_closing_leave_the_connection_as_it_was(server):
    async with PubSub(server.url) as pubsub:
        topic = await pubsub.topic("broken-off").create()
        broker = await pubsub.broker()
        for turn in range(10):
            sub = await topic.subscription(f"broken-off-{turn}").create()
            await topic.publish_message(b"x")
            async for message in sub:
                message.ack()
                break
            sub.resume()
            await asyncio.sleep(0.01 * turn)
            sub.pause()
            await sub.close()
        assert await broker.ping() < 60
        assert reconnects(broker) == 0


@pytest.mark.parametrize("loop", ["_reading_task", "_ping_interval_task"])
async def test_a_loop_of_the_connection_that_somebody_cancels_goes_on(server, loop):
    async with PubSub(server.url) as pubsub:
        topic = pubsub.topic("cancelled-loop")
        if not await topic.exists():
            await topic.create()
        broker = await pubsub.broker()
        cancelled = set()
        for _ in range(3):
            getattr(client_of(broker), loop).cancel()
            cancelled.add(getattr(client_of(broker), loop))
            # What is answered meanwhile is read when there is somebody to read it.
            await asyncio.gather(broker.ping(), topic.publish_message(b"x"), topic.describe())
            await eventually(lambda: getattr(client_of(broker), loop) not in cancelled)
        assert reconnects(broker) == 0


async def test_a_connection_whose_reader_ended_half_way_is_made_anew(server, monkeypatch):
    """What it had read is lost; a ping says so."""
    async with PubSub(server.url) as pubsub:
        broker = await pubsub.broker()
        client = client_of(broker)

        async def cancelled_in_the_middle(_data):
            client._reading_task.cancel()
            await asyncio.sleep(1)

        with monkeypatch.context() as patched:
            patched.setattr(client._ps, "parse", cancelled_in_the_middle)
            with pytest.raises(UnavailableError):
                await broker.ping()
        await eventually(lambda: reconnects(broker) == 1, within=10)
        assert await broker.ping() < 60


@pytest.mark.parametrize(
    "nonsense",
    [
        b"MSG x 1 -5\r\n",
        b"HMSG x 1 9 -9\r\n",
        bytes(100_000),
        b"HTTP/1.1 400\r\n",
        b'INFO {"connect_urls":5}\r\n',
        b"-ERR 'Authorization Violation'\r\n",
    ],
)
async def test_a_server_that_talks_nonsense_is_left_and_asked_again(server, nonsense):
    async with behind_proxy(server, timeout=1) as (proxy, pubsub):
        topic = pubsub.topic("nonsense")
        if not await topic.exists():
            await topic.create()
        said = [nonsense]
        proxy.replies = lambda data: said.pop() if said else data
        with pytest.raises(PenstockError) as caught:
            await topic.publish_message(b"x")
        assert caught.value.retryable
        await publish_when_connected(topic)


@pytest.mark.parametrize(
    "greeting",
    [
        b"INFO\r\n",
        b"INFO 5\r\n",
        b'INFO {"max_payload":-5}\r\n',
        b"INFO {}\r\n\xff\r\n",
        b"x" * 100_000 + b"\r\n",
    ],
)
async def test_a_reconnect_that_meets_something_else_is_tried_again(server, greeting):
    async with behind_proxy(server, timeout=1) as (proxy, pubsub):
        topic = pubsub.topic("strangers")
        if not await topic.exists():
            await topic.create()
        said = [greeting] * 2
        proxy.replies = lambda data: said.pop() if said else data
        proxy.cut()
        await publish_when_connected(topic)
        assert not said


async def test_every_connection_takes_the_short_way_from_the_socket(server):
    async with behind_proxy(server) as (proxy, pubsub):
        client = client_of(await pubsub.broker())
        for number in range(1, 3):
            proxy.cut()
            await eventually(lambda number=number: client.stats["reconnects"] == number)
            await pubsub.topics()
            assert client._out.get_protocol() is client._shortcut


async def test_a_reconnect_that_is_cancelled_at_its_very_end_is_made_again(server, monkeypatch):
    """It says that it is connected before those who wait have been told."""
    async with behind_proxy(server) as (proxy, pubsub):
        topic = pubsub.topic("cancelled-reconnect")
        if not await topic.exists():
            await topic.create()
        broker = await pubsub.broker()
        client = client_of(broker)
        flushing = asyncio.Event()

        async def never_ends():
            flushing.set()
            await asyncio.sleep(60)

        with monkeypatch.context() as patched:
            patched.setattr(client, "flush", never_ends)
            proxy.cut()
            await flushing.wait()
            assert client.is_connected
            for task in (client._reconnection_task, *client._loops()):
                task.cancel()
        await eventually(lambda: reconnects(broker) == 2, within=10)
        await eventually(lambda: client._reconnection_task.done())
        await publish_when_connected(topic)
        assert await broker.ping() < 60


async def test_a_connect_that_is_cancelled_leaves_no_connection_behind(server):
    async with faulty_proxy("127.0.0.1", server.port) as proxy:
        for turn in range(15):
            pubsub = PubSub(f"nats://127.0.0.1:{proxy.port}")
            connecting = asyncio.ensure_future(pubsub.broker())
            await asyncio.sleep(0.001 * turn)
            connecting.cancel()
            await asyncio.wait([connecting])
            if not connecting.cancelled():
                await pubsub.aclose()
        await eventually(lambda: not proxy._links, within=30)


async def test_publishing_while_disconnected_waits_for_the_reconnect(server):
    async with behind_proxy(server, timeout=30) as (proxy, pubsub):
        topic = await pubsub.topic("patient").create()
        sub = await topic.subscription("patient-sub").create()
        broker = await pubsub.broker()
        proxy.refusing = True
        proxy.cut()
        await eventually(lambda: not client_of(broker).is_connected)
        publishing = [asyncio.ensure_future(topic.publish_message(b"%d" % n)) for n in range(5)]
        describing = asyncio.ensure_future(topic.describe())
        pulling = asyncio.ensure_future(
            broker.pull(sub.name, max_messages=1, max_bytes=100, wait=60)
        )
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in (*publishing, describing, pulling))
        proxy.refusing = False
        assert len(await asyncio.gather(*publishing)) == 5
        assert (await describing).config.name == topic.name
        [delivery] = await pulling
        assert delivery.record.data == b"0"
        records = await stored(pubsub, topic.name)
        assert [record.data for record in records] == [b"%d" % n for n in range(5)]


async def test_trying_again_and_again_while_disconnected_takes_its_time(server):
    async with behind_proxy(server, timeout=0.2) as (proxy, pubsub):
        topic = await pubsub.topic("impatient").create()
        await topic.publish_message(b"before")
        proxy.refusing = True
        proxy.cut()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for attempt in (topic.publish_message, topic.publish_message, topic.describe):
            with pytest.raises(UnavailableError):
                await attempt()
        assert loop.time() - began >= 0.35
        proxy.refusing = False
        await publish_when_connected(topic)


async def test_whoever_waits_for_a_reconnect_is_told_when_there_will_be_none(server):
    async with behind_proxy(server, timeout=60) as (proxy, pubsub):
        topic = await pubsub.topic("hopeless").create()
        broker = await pubsub.broker()
        proxy.refusing = True
        proxy.cut()
        await eventually(lambda: not client_of(broker).is_connected)
        publishing = asyncio.ensure_future(topic.publish_message(b"x"))
        await asyncio.sleep(0)
        await pubsub.aclose()
        with pytest.raises(ClosedError):
            await publishing
