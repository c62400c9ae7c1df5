"""What the parsers make of bytes, however they are cut, and of nonsense."""

import asyncio
import re
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.nats.aio.client import SteadyClient
from penstock.brokers.nats.aio.parser import LeanParser
from penstock.brokers.nats.aio.wire import Wire
from penstock.brokers.nats.protocol.frames import MAX_LINE, MAX_MESSAGE
from penstock.brokers.nats.protocol.parsing import DeliveredFrom, DeliveredParser, DirectParser
from penstock.errors import UnavailableError
from penstock.testing import run_virtual, settled


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
    + b"-ERR 'Permissions Violation for Publish to \"Orders\"'\r\n"
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
    ("err", """'permissions violation for publish to "Orders"'"""),
]


def parse(pieces, *, at_once=False):
    """What becomes of pieces; `at_once`: those that nobody has to wait for are taken before."""
    client, ours = Client(), []
    parser = LeanParser(client, {b"7": lambda *message: ours.append(message)})

    async def feed():
        for piece in pieces:
            rest = parser.feed(piece) if at_once else piece
            if rest or not at_once:
                await parser.parse(rest)

    run_virtual(feed())
    return ours, client.calls


def test_a_stream_in_one_piece():
    assert parse([STREAM]) == (OURS, THEIRS)


def test_a_stream_byte_by_byte():
    assert parse([STREAM[n : n + 1] for n in range(len(STREAM))]) == (OURS, THEIRS)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12).map(sorted), st.booleans())
def test_a_stream_cut_anywhere(cuts, at_once):
    edges = [0, *cuts, len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(edges)]
    assert parse(pieces, at_once=at_once) == (OURS, THEIRS)


def test_what_is_ours_is_handed_over_without_waiting_up_to_what_is_not():
    ours = []
    parser = LeanParser(Client(), {b"7": lambda *message: ours.append(message)})
    message = b"MSG orders 7 2\r\nhi\r\n"
    assert parser.feed(message + message[:9]) == b""
    assert parser.feed(message[9:] + b"PING\r\n" + message) == b"PING\r\n" + message
    assert ours == [(b"orders", b"", b"", b"hi")] * 2


async def test_messages_go_before_answers_that_came_with_them():
    order = []

    def sink(*_):
        order.append("message")
        parser.afterwards(lambda: order.append("handler"))

    parser = LeanParser(Client(), {b"7": sink})
    parser.alike = (re.compile(rb"MSG in\.(\d) 8 0\r\n\r\n"), order.append)
    parser.feed(b"MSG in.1 8 0\r\n\r\nMSG orders 7 0\r\n\r\nMSG in.2 8 0\r\n\r\n")
    assert order == ["message", "handler"]
    await asyncio.sleep(0)
    assert order[2:] == [[b"1", b"2"]]


async def test_a_message_that_comes_a_moment_after_an_answer_goes_before_whoever_waits_for_that():
    order = []
    answered = asyncio.get_running_loop().create_future()

    async def publisher():
        await answered
        order.append("publisher")

    parser = LeanParser(Client(), {b"7": lambda *_: order.append("message")})
    parser.alike = (re.compile(rb"MSG in\.(\d) 8 0\r\n\r\n"), answered.set_result)
    publishing = asyncio.ensure_future(publisher())
    await asyncio.sleep(0)
    parser.feed(b"MSG in.1 8 0\r\n\r\n")
    asyncio.get_running_loop().call_soon(parser.feed, b"MSG orders 7 0\r\n\r\n")
    await publishing
    assert order == ["message", "publisher"]


async def test_answers_that_have_come_are_told_when_the_connection_is_lost():
    runs = []
    client = SteadyClient()
    wire = Wire(client)
    wire.on_loss(lambda: runs.append("lost"))
    parser = client._ps
    parser.alike = (re.compile(rb"MSG in\.(\d) 8 0\r\n\r\n"), runs.extend)
    parser.feed(b"MSG in.1 8 0\r\n\r\n")
    wire.lost()
    assert runs == [b"1", "lost"]
    await asyncio.sleep(0)
    assert runs == [b"1", "lost"]


async def test_answers_that_came_with_a_message_are_taken_though_its_handler_ends_the_program():
    runs = []

    def sink(*_):
        parser.afterwards(sys.exit)

    parser = LeanParser(Client(), {b"7": sink})
    parser.alike = (re.compile(rb"MSG in\.(\d) 8 0\r\n\r\n"), runs.extend)
    with pytest.raises(SystemExit):
        parser.feed(b"MSG in.1 8 0\r\n\r\nMSG orders 7 0\r\n\r\n")
    await asyncio.sleep(0)
    assert runs == [b"1"]


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
    numbers = [b"%d" % n for n in range(6)]
    assert runs[1::3] == runs[2::3] == 2 * numbers
    assert not any(b'"seq"' in payload for *_, payload in ours)
    assert sum(b"error" in payload for *_, payload in ours) == 1


def test_a_reset_in_the_middle_of_a_piece_forgets_the_rest_of_it():
    client, ours = Client(), []
    parser = LeanParser(client, {b"7": lambda *message: ours.append(message)})

    async def reconnect(_error):
        parser.reset()

    client._process_op_err = reconnect

    async def feed():
        await parser.parse(b"-ERR 'odd'\r\nMSG orders 7 3\r\nold\r\nMSG orders 7 3\r\no")
        await parser.parse(b"MSG orders 7 3\r\nnew\r\n")

    run_virtual(feed())
    assert ours == [(b"orders", b"", b"", b"new")]


@pytest.mark.parametrize(
    "behind", [b"MSG orders 7 3\r\nold\r\n", b"PING\r\n", b"MSG orders 7 3\r\no"]
)
def test_a_reset_by_who_is_handed_a_message_forgets_what_is_behind_it(behind):
    ours = []

    def take(*message):
        ours.append(message)
        if len(ours) == 1:
            parser.reset()

    parser = LeanParser(Client(), {b"7": take})
    assert parser.feed(b"MSG orders 7 3\r\nold\r\n" + behind) == b""
    assert parser.feed(b"MSG orders 7 3\r\nnew\r\n") == b""
    assert [payload for *_, payload in ours] == [b"old", b"new"]


@pytest.mark.parametrize(
    "data",
    [
        b"MSG orders 7 -5\r\n",
        b"HMSG orders 7 -20 -5\r\n",
        b"HMSG orders 7 20 10\r\n" + bytes(12),
        b"HMSG orders 7 5\r\nhello\r\n",
        b"MSG orders 7 %d\r\n" % (MAX_MESSAGE + 1),
        b"MSG orders 7 five\r\n",
        b"MSG orders 7 +5\r\nhello\r\n",
        b"MSG orders 7 1_0\r\nhellohello\r\n",
        b"HMSG orders 7 +0 5\r\nhello\r\n",
        b"MSG orders 7 a b c 5\r\nhello\r\n",
        b"MSG orders\r\n",
        b"MSG\r\n",
        b"MSG other nine 5\r\nhello\r\n",
        b"MSG orders 7 3\r\nhello\r\n",
        b"HELLO\r\n",
        b"\r\n",
        b"INFO [1]\r\n",
        b'INFO {"max_payload":-5}\r\n',
        b'INFO {"max_payload":"1048576"}\r\n',
        b'INFO {"max_payload":true}\r\n',
        b"INFO \xff\r\n",
        b"INFO\r\n",
        b"x" * MAX_LINE,
    ],
)
def test_nonsense_ends_the_connection(data):
    with pytest.raises(UnavailableError, match="connecting anew"):
        parse([STREAM, data])


def test_a_line_without_an_end_is_given_up_before_it_fills_the_memory():
    parser = LeanParser(Client(), {})

    async def feed():
        with pytest.raises(UnavailableError, match="a line of more than"):
            for _ in range(1024):
                await parser.parse(bytes(32_768))

    run_virtual(feed())
    assert len(parser._rest) <= MAX_LINE


@pytest.mark.parametrize("text", [b"-ERR\r\n", b"-ERR  \r\n", b"-ERR 'Stale \xff Connection'\r\n"])
def test_an_error_without_words_is_one_all_the_same(text):
    assert len(parse([text])[1]) == 1


# Pieces that look like the protocol, so that a fuzzer gets past the first line.
WORDS = st.sampled_from(
    b"MSG HMSG PING PONG +OK -ERR INFO msg in orders reply $JS.ACK.s.c.1.2.3.4.5 7 9 1 -1 0 3 5 12 "
    b'16 44 99999999999 1e3 {} {"server_id":"x"} Stale \xff  '.split(b" ")
)
LINES = st.lists(WORDS, max_size=6).map(b" ".join)
BODIES = st.sampled_from(
    [b"", b"abc", b"hello", HEAD, HEAD + b"abc", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 x\r\n\r\n"]
) | st.binary(max_size=16)
MESSAGES = st.builds(
    lambda subject, sid, reply, block, payload, off: (
        b"HMSG %b %b%b %d %d\r\n%b%b\r\n"
        % (subject, sid, reply, len(block), len(block) + len(payload) + off, block, payload)
    ),
    st.sampled_from([b"orders", b"in"]),
    st.sampled_from([b"7", b"9", b"1"]),
    st.sampled_from([b"", b" $JS.ACK.s.c.1.2.3.4.5", b" reply"]),
    st.sampled_from([HEAD, b"", b"NATS/1.0 404\r\n\r\n"])
    | st.binary(max_size=40).map(
        lambda extra: (
            b"NATS/1.0\r\nNats-Stream: s\r\nNats-Subject: a\r\nNats-Sequence: 5\r\n"
            b"Nats-Time-Stamp: 2026-01-02T03:04:05.1Z\r\n%b\r\n" % extra
        )
    ),
    BODIES,
    st.sampled_from([0, 0, 0, 0, 1, -1]),
)
STREAMS = st.lists(
    st.one_of(MESSAGES, LINES.map(lambda line: line + b"\r\n"), BODIES, st.binary(max_size=60)),
    max_size=8,
).map(b"".join)
CUTS = st.lists(st.integers(0, 400), max_size=6).map(sorted)


def cut(data, cuts):
    edges = [0, *[at for at in cuts if at < len(data)], len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def outcome(pieces):
    """What a parser did with the pieces, and whether it took them for nonsense."""
    client, ours = Client(), []
    parser = LeanParser(client, {b"7": lambda *message: ours.append(message)})

    async def feed():
        for piece in pieces:
            await parser.parse(piece)

    try:
        run_virtual(feed())
    except UnavailableError as error:
        return ours, client.calls, str(error)
    return ours, client.calls, None


@given(STREAMS, CUTS)
def test_whatever_comes_is_understood_or_refused_the_same_however_it_is_cut(data, cuts):
    assert outcome(cut(data, cuts)) == outcome([data])


def columns(parser, pieces):
    """The same for a parser of answers: fed as a blocking connection does."""
    rest, refused = b"", None
    try:
        for piece in pieces:
            if parser.status:
                break
            rest += piece
            if len(piece) >= parser.missing:
                rest = rest[parser.take(rest) :]
            else:
                parser.missing -= len(piece)
    except UnavailableError as error:
        refused = str(error)
    found = parser.columns
    return [getattr(found, name) for name in found.__slots__], parser.status, refused


def direct():
    return DirectParser("topic", b"in", lambda line: None)


def delivered():
    consumer = DeliveredFrom("s", "c")
    return DeliveredParser("topic", b"in", lambda line: None, consumer=consumer, wanted=3)


@pytest.mark.parametrize("make", [direct, delivered])
@given(STREAMS, CUTS)
def test_answers_are_understood_or_refused_the_same_however_they_are_cut(make, data, cuts):
    assert columns(make(), cut(data, cuts)) == columns(make(), [data])


class CountingPattern:
    """A pattern that counts how often it searched what lies before it."""

    def __init__(self, pattern):
        self._pattern = re.compile(pattern)
        self.groups, self.match = self._pattern.groups, self._pattern.match
        self.searches = 0

    def split(self, data):
        self.searches += 1
        return self._pattern.split(data)


async def test_a_piece_in_which_answers_and_messages_take_turns_is_searched_once():
    ours, runs = [], []
    parser = LeanParser(Client(), {b"7": lambda *message: ours.append(message)})
    pattern = CountingPattern(rb"MSG in\.(\d+) 8 0\r\n\r\n")
    parser.alike = (pattern, runs.extend)
    parser.feed(b"".join(b"MSG in.%d 8 0\r\n\r\nMSG orders 7 0\r\n\r\n" % n for n in range(50)))
    await asyncio.sleep(0)
    assert runs == [b"%d" % n for n in range(50)]
    assert len(ours) == 50
    assert pattern.searches == 1


@pytest.mark.parametrize("few", [0, 1024])
async def test_an_answer_inside_a_message_is_not_taken_for_one(few, monkeypatch):
    monkeypatch.setattr("penstock.brokers.nats.aio.parser._MANY_ALIKE", few)
    ours, runs = [], []
    parser = LeanParser(Client(), {b"7": lambda *message: ours.append(message)})
    answer = b"MSG in.%d 8 0\r\n\r\n"
    parser.alike = (re.compile(rb"MSG in\.(\d+) 8 0\r\n\r\n"), runs.extend)
    inside = answer % 5
    parser.feed(answer % 1 + b"MSG orders 7 %d\r\n%b\r\n" % (len(inside), inside) + answer % 2)
    await asyncio.sleep(0)
    assert runs == [b"1", b"2"]
    assert [payload for *_, payload in ours] == [inside]


def test_what_sinks_leave_for_later_is_done_when_all_that_came_is_read():
    order = []

    def sink(subject, *_):
        order.append(subject)
        parser.afterwards(lambda: order.append(b"later " + subject))

    parser = LeanParser(Client(), {b"7": sink})
    parser.feed(b"MSG one 7 0\r\n\r\nMSG two 7 0\r\n\r\nMSG thr")
    assert order == [b"one", b"two", b"later one", b"later two"]

    async def read():
        await parser.parse(b"ee 7 0\r\n\r\nPING\r\n")
        await settled()

    run_virtual(read())
    assert order[4:] == [b"three", b"later three"]


async def test_what_sinks_leave_for_later_cannot_end_the_task_that_reads():
    tasks = []

    def sink(*_):
        parser.afterwards(lambda: tasks.append(asyncio.current_task()))

    parser = LeanParser(Client(), {b"7": sink})
    await parser.parse(b"MSG one 7 0\r\n\r\nPING\r\n")
    await settled()
    assert tasks == [None]
