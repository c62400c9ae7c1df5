"""The lean wire path: what the parser makes of bytes, however they are cut."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.nats.aio.wire import LeanParser, Wire, check_compatible
from penstock.brokers.nats.protocol.requests import publish_operation
from penstock.testing import run_virtual


class Client:
    """As much of nats-py's client as a parser sees."""

    is_connected = True

    def __init__(self):
        self.calls = []

    async def _process_op_err(self, error):
        self.calls.append(("reconnect", str(error)))

    async def _process_msg(self, sid, subject, reply, payload, headers):
        self.calls.append(("msg", sid, subject, reply, payload, headers))

    async def _process_ping(self):
        self.calls.append("ping")

    async def _process_pong(self):
        self.calls.append("pong")

    async def _process_err(self, text):
        self.calls.append(("err", text))

    async def _process_info(self, info):
        self.calls.append(("info", info["server_id"]))


HEAD = b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n"
STREAM = (
    b'INFO {"server_id":"x"}\r\n'
    b"PING\r\n"
    b"MSG orders 7 5\r\nhello\r\n"
    b"MSG orders 7 reply.to 7\r\nwith\r\n!\r\n"
    b"PONG\r\n"
    b"HMSG orders 7 %d %d\r\n%bbody\r\n"
    % (len(HEAD), len(HEAD) + 4, HEAD)
    + b"HMSG orders 7 $JS.ACK.x %d %d\r\n%b\r\n" % (len(HEAD), len(HEAD), HEAD)
    + b"+OK\r\n"
    b"HMSG _INBOX.1 7 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    b"MSG other 9 3\r\nabc\r\n"
    b"HMSG other 9 back %d %d\r\n%bxyz\r\n"
    % (len(HEAD), len(HEAD) + 3, HEAD)
    + b"-ERR 'Permissions Violation'\r\n"
    b"MSG orders 7 0\r\n\r\n"
)
OURS = [
    (b"orders", b"", b"", b"hello"),
    (b"orders", b"reply.to", b"", b"with\r\n!"),
    (b"orders", b"", HEAD, b"body"),
    (b"orders", b"$JS.ACK.x", HEAD, b""),
    (b"_INBOX.1", b"", b"NATS/1.0 503\r\n\r\n", b""),
    (b"orders", b"", b"", b""),
]
THEIRS = [
    ("info", "x"),
    "ping",
    "pong",
    ("msg", 9, b"other", b"", b"abc", None),
    ("msg", 9, b"other", b"back", b"xyz", HEAD),
    ("err", "'permissions violation'"),
]


def parse(pieces):
    client, ours = Client(), []
    parser = LeanParser(client, {b"7": lambda *message: ours.append(message)})

    async def feed():
        for piece in pieces:
            await parser.parse(piece)

    run_virtual(feed())
    return ours, client.calls


def test_a_stream_in_one_piece():
    assert parse([STREAM]) == (OURS, THEIRS)


def test_a_stream_byte_by_byte():
    assert parse([STREAM[n : n + 1] for n in range(len(STREAM))]) == (OURS, THEIRS)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12).map(sorted))
def test_a_stream_cut_anywhere(cuts):
    edges = [0, *cuts, len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(edges)]
    assert parse(pieces) == (OURS, THEIRS)


def test_an_error_nats_py_does_not_know_is_a_reason_to_connect_anew():
    _, theirs = parse([b"-ERR 'Maximum Connections Exceeded'\r\n"])
    assert theirs == [("reconnect", "nats: 'maximum connections exceeded'")]


def test_a_huge_message_is_joined_once():
    payload = bytes(range(256)) * 40_000
    data = b"MSG orders 7 %d\r\n%b\r\nPING\r\n" % (len(payload), payload)
    pieces = [data[n : n + 32_768] for n in range(0, len(data), 32_768)]
    ours, theirs = parse(pieces)
    assert ours == [(b"orders", b"", b"", payload)]
    assert theirs == ["ping"]


def test_a_reconnect_in_the_middle_of_a_message_forgets_it():
    client, ours = Client(), []
    parser = LeanParser(client, {b"7": lambda *message: ours.append(message)})

    async def feed():
        await parser.parse(b"MSG orders 7 100\r\nhalf of it")
        parser.reset()
        await parser.parse(b"MSG orders 7 3\r\nnew\r\n")

    run_virtual(feed())
    assert ours == [(b"orders", b"", b"", b"new")]


@given(st.lists(st.integers(0, 300), max_size=8).map(sorted))
def test_answers_that_look_alike_come_in_runs_however_they_are_cut(cuts):
    data = b"".join(
        b'MSG in.1.%d 7 27\r\n{"stream":"orders","seq":%d}\r\n' % (n, n) for n in range(6)
    )
    odd = b'MSG in.1.6 7 14\r\n{"error":null}\r\n'
    stream = data + odd + data
    edges = [0, *[c for c in cuts if c < len(stream)], len(stream)]
    ours, runs = [], []
    parser = LeanParser(Client(), {b"7": lambda *message: ours.append(message)})
    pattern = rb'MSG in\.(\d+)\.(\d+) 7 \d+\r\n\{"stream":"[^"]*","seq":(\d+)\}\r\n'
    parser.alike = (re.compile(pattern), runs.extend)

    async def feed():
        for a, b in pairwise(edges):
            await parser.parse(stream[a:b])

    run_virtual(feed())
    whole = len(runs) + sum(b'"seq"' in payload for *_, payload in ours)
    assert whole == 12
    assert sum(b"error" in payload for *_, payload in ours) == 1


def test_operations_are_complete():
    assert publish_operation(b"a", b"", b"", b"xy") == b"PUB a 2\r\nxy\r\n"
    assert publish_operation(b"a", b"r", b"", b"") == b"PUB a r 0\r\n\r\n"
    assert publish_operation(b"a", b"", b"HH", b"xy") == b"HPUB a 2 4\r\nHHxy\r\n"
    assert publish_operation(b"a", b"r", b"HH", b"xy") == b"HPUB a r 2 4\r\nHHxy\r\n"


def test_this_nats_py_is_one_we_know():
    check_compatible()
    import nats.aio.client

    client = nats.aio.client.Client()
    assert Wire(client).connected is False


def test_a_nats_py_we_do_not_know_is_refused(monkeypatch):
    import nats.aio.client

    monkeypatch.delattr(nats.aio.client.Client, "_process_msg")
    with pytest.raises(Exception, match="_process_msg"):
        check_compatible()
