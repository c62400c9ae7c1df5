"""The connection of a process: when it is made, how often it is tried, what it says of itself."""

import asyncio

import pytest

from penstock.bridge.connection import BridgeConnection, ConnectionState, opener, servers
from penstock.brokers.memory import MemoryBroker
from penstock.errors import ClosedError, PenstockError, UnauthenticatedError, UnavailableError


class Server:
    """Something to connect to, that can be away."""

    def __init__(self):
        self.opened = []
        self.failures = []

    async def open(self):
        await asyncio.sleep(0.01)
        if self.failures:
            raise self.failures.pop(0)
        self.opened.append(MemoryBroker())
        return self.opened[-1]


@pytest.fixture
def server():
    return Server()


async def test_nothing_is_connected_before_it_is_used(server):
    connection = BridgeConnection(server.open)
    assert connection.state is ConnectionState.DISCONNECTED and server.opened == []
    await connection.broker()
    assert connection.state is ConnectionState.CONNECTED
    assert connection.connected_at is not None
    await connection.aclose()


async def test_whoever_comes_at_the_same_time_gets_the_same_connection(server):
    connection = BridgeConnection(server.open)
    brokers = await asyncio.gather(*(connection.broker() for _ in range(20)))
    assert len(server.opened) == 1 and set(brokers) == set(server.opened)
    await connection.aclose()


async def test_a_server_that_is_away_is_tried_as_often_as_asked(server):
    server.failures = [UnavailableError("away")] * 2
    connection = BridgeConnection(server.open, attempts=3, delay=2)
    began = asyncio.get_running_loop().time()
    connecting = asyncio.create_task(connection.broker())
    await asyncio.sleep(0.005)
    assert connection.state is ConnectionState.CONNECTING
    await connecting
    assert 0 < asyncio.get_running_loop().time() - began <= 8.1
    server.failures = [UnavailableError("away")] * 3
    with pytest.raises(UnavailableError):
        await connection.reconnect()
    assert connection.state is ConnectionState.DISCONNECTED
    assert (await connection.broker()) is server.opened[-1]


async def test_what_will_never_work_is_tried_once(server):
    server.failures = [UnauthenticatedError("no")] * 2
    connection = BridgeConnection(server.open, attempts=3)
    with pytest.raises(UnauthenticatedError):
        await connection.broker()
    assert len(server.failures) == 1


async def test_reconnecting_makes_a_new_connection_and_ends_the_old(server):
    connection = BridgeConnection(server.open)
    await connection.broker()
    await connection.reconnect()
    assert len(server.opened) == 2 and connection.reconnects == 1
    assert connection.state is ConnectionState.CONNECTED
    with pytest.raises(ClosedError):
        await server.opened[0].ping()
    assert await connection.check() == 0.0


async def test_a_connection_that_does_not_answer_says_so_and_comes_back(server):
    connection = BridgeConnection(server.open)
    broker = await connection.broker()
    answers = [UnavailableError("lost"), 0.25]

    async def ping():
        answer = answers.pop(0)
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    broker.ping = ping
    with pytest.raises(UnavailableError):
        await connection.check()
    assert connection.state is ConnectionState.RECONNECTING
    assert await connection.check() == 0.25
    assert connection.state is ConnectionState.CONNECTED


async def test_closing_twice_and_before_use_is_safe_and_final(server):
    connection = BridgeConnection(server.open)
    await connection.aclose()
    await connection.aclose()
    assert connection.state is ConnectionState.CLOSED
    for use in (connection.broker, connection.reconnect, connection.check):
        with pytest.raises(ClosedError, match="make a new one"):
            await use()


async def test_closing_while_it_connects_leaves_nothing_open(server):
    connection = BridgeConnection(server.open)
    connecting = asyncio.create_task(connection.broker())
    await asyncio.sleep(0)
    await connection.aclose()
    with pytest.raises(ClosedError):
        await connecting
    with pytest.raises(ClosedError):
        await server.opened[0].ping()


def test_another_event_loop_gets_a_connection_of_its_own(server):
    connection = BridgeConnection(server.open)
    asyncio.run(connection.broker())
    asyncio.run(connection.broker())
    assert len(server.opened) == 2


async def test_a_broker_that_belongs_to_somebody_else_stays_open(server):
    broker = MemoryBroker()

    async def given():
        return broker

    connection = BridgeConnection(given, owns=False)
    await connection.broker()
    await connection.aclose()
    assert await broker.ping() == 0.0


def test_addresses_are_shown_without_credentials():
    assert servers("nats://me:secret@one:4222,two:4222?x=1") == [
        "nats://one:4222",
        "nats://two:4222",
    ]
    assert servers("memory://") == ["memory://"]


async def test_the_streams_of_a_bridge_are_told_to_a_nats_server_only(monkeypatch):
    asked = []

    async def connect(url, *, clock):
        asked.append(url)

    monkeypatch.setattr("penstock.bridge.connection.connect", connect)
    for url in ("nats://h", "tls://h?timeout=3", "nats://h?topics=mine", "memory://", "local://x"):
        await opener(url, "events", "letters")()
    assert asked == [
        "nats://h?topics=events,letters",
        "tls://h?timeout=3&topics=events,letters",
        "nats://h?topics=mine",
        "memory://",
        "local://x",
    ]
