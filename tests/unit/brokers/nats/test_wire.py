"""What goes out on the wire, and on whose insides it stands."""

import asyncio
from types import SimpleNamespace

import pytest

from penstock.brokers.nats.aio.client import Shortcut, SteadyClient, check_compatible
from penstock.brokers.nats.aio.wire import WRITE_CHUNK, Wire
from penstock.brokers.nats.protocol.requests import publish_operation
from penstock.errors import UnavailableError


def test_operations_are_complete():
    assert publish_operation(b"a", b"", b"", b"xy") == b"PUB a 2\r\nxy\r\n"
    assert publish_operation(b"a", b"r", b"", b"") == b"PUB a r 0\r\n\r\n"
    assert publish_operation(b"a", b"", b"HH", b"xy") == b"HPUB a 2 4\r\nHHxy\r\n"
    assert publish_operation(b"a", b"r", b"HH", b"xy") == b"HPUB a r 2 4\r\nHHxy\r\n"


def test_this_nats_py_is_one_we_know():
    check_compatible()

    client = SteadyClient()
    assert Wire(client).connected is False


@pytest.mark.parametrize(
    ("cluster", "alone"),
    [({}, True), ({"cluster": ""}, True), ({"cluster": "edge"}, True), ({"cluster": "all"}, False)],
)
def test_a_server_is_alone_that_names_no_cluster_but_itself(cluster, alone):
    client = SteadyClient()
    client._server_info = {"server_id": "N1", "server_name": "edge", **cluster}
    assert Wire(client).lone_server == ("N1" if alone else "")


def test_a_nats_py_we_do_not_know_is_refused(monkeypatch):
    import nats.aio.client

    monkeypatch.delattr(nats.aio.client.Client, "_process_msg")
    with pytest.raises(Exception, match="_process_msg"):
        check_compatible()


class Away(SteadyClient):
    """A connection that is being made anew, until the test says that it is there."""

    is_connected = is_closed = False


async def test_whoever_waits_for_a_connection_goes_on_with_it():
    client = Away()
    wire = Wire(client)
    waiting = asyncio.ensure_future(wire.until_connected())
    await asyncio.sleep(wire.timeout - 0.1)
    assert not waiting.done()
    assert not wire.is_ready
    client.is_connected = True
    wire.found()
    assert not wire.is_ready, "nobody overtakes those who wait"
    assert await waiting is None
    assert wire.is_ready


async def test_whoever_waits_for_a_connection_in_vain_is_told():
    wire = Wire(Away())
    loop = asyncio.get_running_loop()
    for within, waited in ((None, wire.timeout), (1.0, 1.0)):
        began = loop.time()
        with pytest.raises(UnavailableError, match="reconnect"):
            await wire.until_connected(within)
        assert loop.time() - began == waited


async def test_whoever_waits_for_a_connection_is_not_overtaken_by_one_who_comes_with_it():
    client, gone = Away(), []
    wire = Wire(client)

    async def write(n):
        await wire.until_connected()
        gone.append(n)

    waiting = [asyncio.ensure_future(write(n)) for n in range(2)]
    await asyncio.sleep(1)
    client.is_connected = True  # A moment before it is told.
    waiting.append(asyncio.ensure_future(write(2)))
    await asyncio.sleep(0)
    wire.found()
    await write(3)
    await asyncio.gather(*waiting)
    assert gone == [0, 1, 2, 3]


class Slow(SteadyClient):
    """Connected to somebody who takes what is written in `seconds`, one piece after the other."""

    is_connected, is_closed, behind = True, False, True

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.aborted = 0
        self.io = self

    def write(self, data):
        pass

    async def drain(self):
        await asyncio.sleep(self.seconds)

    def abort(self):
        self.aborted += 1

    io = None


@pytest.mark.parametrize(("seconds", "aborted"), [(3, 0), (6, 1)])
async def test_writers_that_wait_for_each_other_have_the_same_time(seconds, aborted):
    """Who waited in vain was not the one that the server did not take."""
    client = Slow(seconds)
    wire, loop = Wire(client), asyncio.get_running_loop()

    async def write():
        try:
            await wire.write([b"x"])
        except UnavailableError as error:
            return loop.time(), str(error)
        return loop.time(), ""

    began = loop.time()
    ends = await asyncio.gather(write(), write())
    assert [ended - began for ended, _ in ends] == [min(seconds, 5), 5]
    assert ["anew" in text for _, text in ends] == [bool(aborted), False]
    assert "before" in ends[1][1]
    assert client.aborted == aborted


async def test_each_piece_of_a_large_write_has_the_whole_time():
    client = Slow(3)
    wire, loop = Wire(client), asyncio.get_running_loop()
    began, moments = loop.time(), []
    parts = [bytes(WRITE_CHUNK)] * 4
    await wire.write(parts, lambda: moments.append(loop.time() - began))
    assert moments == [0, 3, 6, 9]
    assert loop.time() - began == 12


class Transport:
    """As much of a transport as decides who is told of what comes."""

    def __init__(self, protocol, *, encrypted=False):
        self.protocol = protocol
        self._encrypted = encrypted

    def get_extra_info(self, name):
        return object() if name == "sslcontext" and self._encrypted else None

    def get_protocol(self):
        return self.protocol

    def set_protocol(self, protocol):
        self.protocol = protocol

    def receive(self, data):
        self.protocol.get_buffer(-1)[: len(data)] = data
        self.protocol.buffer_updated(len(data))


class Parser:
    missing = 0


async def test_more_is_read_at_once_in_the_middle_of_a_large_message():
    reader, parser = asyncio.StreamReader(), Parser()
    shortcut = Shortcut(
        reader, Transport(asyncio.StreamReaderProtocol(reader)), bytes, parser, left=0
    )
    usual = len(shortcut.get_buffer(-1))
    parser.missing = usual
    assert len(shortcut.get_buffer(-1)) > 4 * usual
    parser.missing = 300
    assert len(shortcut.get_buffer(-1)) == usual


async def test_what_comes_goes_past_the_reader_unless_that_is_behind():
    reader = asyncio.StreamReader()
    transport = Transport(asyncio.StreamReaderProtocol(reader))
    fed = []

    def feed(data):
        fed.append(data)
        return b"" if data.startswith(b"ours") else data

    shortcut = Shortcut(reader, transport, feed, Parser(), left=0)
    for data in (b"ours 1", b"theirs", b"ours 2"):
        transport.receive(data)
    assert fed == [b"ours 1", b"theirs"], "the second of ours must not overtake theirs"
    read = await reader.read(1000)
    assert read == b"theirsours 2"
    shortcut.left -= len(read)
    transport.receive(b"ours 3")
    assert fed[2:] == [b"ours 3"]


async def test_nonsense_on_the_short_way_is_told_to_the_reader():
    reader = asyncio.StreamReader()
    transport = Transport(asyncio.StreamReaderProtocol(reader))

    def feed(_):
        raise ValueError("nonsense")

    Shortcut(reader, transport, feed, Parser(), left=0)
    transport.receive(b"x")
    with pytest.raises(ValueError, match="nonsense"):
        await reader.read(1000)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_the_end_of_an_encrypted_connection_is_not_asked_to_wait(encrypted):
    reader = asyncio.StreamReader()
    transport = Transport(asyncio.StreamReaderProtocol(reader), encrypted=encrypted)
    Shortcut(reader, transport, bytes, Parser(), left=0)
    # True would keep the connection open, which asyncio warns of where it cannot be done.
    assert transport.protocol.eof_received() is not encrypted
    assert reader.at_eof()


class Socket:
    """A connection that is there, and counts the pieces it is given and the waits for it."""

    is_connected = True

    def __init__(self, *, behind):
        self.behind, self.io = behind, self
        self.pieces, self.waits = [], 0

    def send(self, data):
        self.pieces.append(data)

    def send_now(self, data=b""):
        self.pieces += [data] if data else []

    def write(self, data):
        self.pieces.append(data)

    async def drain(self):
        self.waits += 1


@pytest.mark.parametrize(
    ("operations", "behind", "waits"),
    [(20, False, False), (20, True, True), (2000, False, True), (2000, True, True)],
)
async def test_a_write_waits_for_the_socket_when_that_is_behind_or_the_batch_is_large(
    operations, behind, waits
):
    socket = Socket(behind=behind)
    parts = [b"%05d" % n + bytes(1000) for n in range(operations)]
    await Wire(socket).write(parts)
    assert b"".join(socket.pieces) == b"".join(parts)
    assert max(map(len, socket.pieces)) <= WRITE_CHUNK + len(parts[0])
    assert (socket.waits > 0) == waits


async def test_a_write_does_not_come_between_the_pieces_of_another():
    socket = Socket(behind=False)
    taken = asyncio.Event()
    socket.drain = taken.wait
    wire = Wire(socket)
    large = [b"%05d" % n + bytes(1000) for n in range(2000)]
    writes = [asyncio.ensure_future(wire.write(large))]
    await asyncio.sleep(0)
    assert socket.pieces, "it has begun"
    writes += [asyncio.ensure_future(wire.write([b"small %d" % n])) for n in range(3)]
    await asyncio.sleep(0)
    taken.set()
    await asyncio.gather(*writes)
    assert b"".join(socket.pieces) == b"".join(large) + b"small 0small 1small 2"


class Reachable(SteadyClient):
    is_connected = True

    def subscribe_now(self, subject, queue):
        return 7


async def test_answers_that_look_otherwise_do_not_overtake_those_before_them():
    told = []
    client = Reachable()
    Wire(client).subscribe_runs(
        "in", rb"(\d) %b 0\r\n\r\n", told.extend, lambda *message: told.append(message[-1])
    )
    client.feed(b"MSG in.1 7 0\r\n\r\nMSG in.1 7 2\r\nok\r\nMSG in.2 7 0\r\n\r\n")
    await asyncio.sleep(0)
    assert told == [b"1", b"ok", b"2"]


@pytest.mark.parametrize("way", ["free", "behind", "away", "closed", "others write"])
async def test_what_is_written_at_once_overtakes_nothing(way):
    socket = Socket(behind=way == "behind")
    socket.is_connected = way != "away"
    wire = Wire(socket)
    wire.closed = way == "closed"
    if way == "others write":
        taken = asyncio.Event()
        socket.drain = taken.wait
        large = [bytes(1000)] * 2000
        other = asyncio.ensure_future(wire.write(large))
        await asyncio.sleep(0)
    before = len(socket.pieces)
    assert wire.write_now(b"now") is (way == "free")
    assert socket.pieces[before:] == ([b"now"] if way == "free" else [])
    if way == "others write":
        taken.set()
        await other


async def test_what_is_sent_at_once_does_not_overtake_what_is_sent_with_the_turn():
    client, written = Reachable(), []
    client._out = SimpleNamespace(write=written.append, get_write_buffer_size=lambda: 5)
    assert client.behind
    client.send(b"first ")
    client.send_now(b"second")
    await asyncio.sleep(0)
    assert written == [b"first second"]


async def test_nobody_asks_a_lost_connection_how_much_it_has_to_write():
    class Gone:
        def get_write_buffer_size(self):
            raise AttributeError("as asyncio's own does over TLS")

    client = Away()
    client._out = Gone()
    assert Wire(client).write_now(b"x") is False


class Noting(Reachable):
    def __init__(self):
        super().__init__()
        self.sent = []

    def unsubscribe_now(self, number):
        self.send(b"UNSUB %d\r\n" % number)

    def send(self, data):
        self.sent.append(data)


async def test_what_was_sent_before_the_server_knew_of_the_end_finds_whom_it_is_for():
    """However slowly it comes: the server answers behind it."""
    client, came = Noting(), []
    wire = Wire(client)
    unsubscribe = wire.subscribe("orders", lambda *message: came.append(message[3]))
    unsubscribe()
    await asyncio.sleep(600)
    assert client.sent == [b"UNSUB 7\r\n", b"PING\r\n"]
    assert not client.feed(b"MSG orders 7 2\r\nxy\r\n")
    assert came == [b"xy"]
    await client._process_pong()
    await asyncio.sleep(0)
    assert not wire._sinks


@pytest.mark.parametrize("when", ["before", "after"])
async def test_nothing_comes_for_what_has_ended_when_the_connection_is_lost(when):
    client = Noting()
    wire = Wire(client)
    unsubscribe = wire.subscribe("orders", lambda *message: None)
    if when == "before":
        client.is_connected = False
    unsubscribe()
    if when == "after":
        wire.lost()
    assert not wire._sinks


class Silent(SteadyClient):
    """Connected to somebody who says nothing."""

    is_connected, is_closed = True, False

    def send(self, data):
        pass


async def test_who_would_hear_all_that_was_sent_waits_for_no_more_than_a_second():
    loop = asyncio.get_running_loop()
    wire = Wire(Silent())
    began = loop.time()
    await wire.hear_all()
    assert loop.time() - began == 1.0
    lost = asyncio.ensure_future(wire.hear_all())
    await asyncio.sleep(0.5)
    wire.lost()
    await lost
    assert loop.time() - began == 1.5
    await Wire(Away()).hear_all()
    assert loop.time() - began == 1.5
