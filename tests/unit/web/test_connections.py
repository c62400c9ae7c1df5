"""The protocol over a transport that only writes down what it is told."""

import asyncio
import re

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from uvicorn.server import ServerState

from penstock.web import connections

HOST = b"Host: here\r\n"
ASK = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"
KNOWN = b"GET /known HTTP/1.1\r\n" + HOST + b"\r\n"
LATER = b"GET /later HTTP/1.1\r\n" + HOST + b"\r\n"
TWO_LENGTHS = (
    b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"
)
BROKEN_BODY = b"POST /b HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"


class Wire(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.writes = []
        self.closed = False
        self.is_read = True

    @property
    def said(self):
        return b"".join(self.writes)

    def write(self, data):
        if data:
            self.writes.append(bytes(data))

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.is_read = False

    def resume_reading(self):
        self.is_read = True


class NotAsked(asyncio.Protocol):
    """Would take connections over, if something for websockets is installed."""


class Served:
    """A connection, and a small app behind it that answers what it was asked."""

    def __init__(self):
        self.asked = []
        self.heads = []
        self.left = 0
        self.go_on = asyncio.Semaphore(0)
        self.wire = Wire()
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
            timeout_keep_alive=15,
            ws=NotAsked,
        )
        config.load()
        self.protocol = connections.Protocol(config, ServerState(), {})
        self.protocol.connection_made(self.wire)

    async def says(self, *parts):
        for part in parts:
            self.protocol.data_received(part)
            await settled()

    @property
    def statuses(self):
        return re.findall(r"HTTP/1\.1 (\d+)", self.wire.said.decode())

    async def _app(self, scope, receive, send):
        length = [(b"content-length", b"4")] if "known" in scope["path"] else []
        if "later" in scope["path"]:
            await send({"type": "http.response.start", "status": 200, "headers": length})
            await self.go_on.acquire()
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left += 1
                return
            body, more = body + message["body"], message["more_body"]
        self.asked.append((scope["path"], body))
        self.heads.append(dict(scope["headers"]))
        if "later" not in scope["path"]:
            await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": b"done", "more_body": False})


async def settled():
    """Tasks have gone as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


def wishing(method, *headers, body=b""):
    lines = [method + b" /a HTTP/1.1", b"Host: here", b"Connection: Upgrade, HTTP2-Settings"]
    return b"\r\n".join([*lines, b"Upgrade: h2c", *headers, b"", body])


async def test_a_body_behind_a_wish_for_another_protocol_is_that_requests_body():
    served = Served()
    head = wishing(b"POST", b"Content-Length: %d" % len(ASK))
    await served.says(head[:30], head[30:], ASK)
    assert served.asked == [("/a", ASK)]
    await served.says(wishing(b"POST", b"Content-Length: 2", body=b"hi") + ASK)
    assert served.asked[1:] == [("/a", b"hi"), ("/a", b"")]


async def test_a_wish_for_a_websocket_is_not_heard(caplog):
    served = Served()
    await served.says(wishing(b"GET").replace(b"h2c", b"websocket") + wishing(b"GET") + ASK)
    assert served.statuses == ["200", "200", "200"] and not caplog.records


async def test_a_broken_body_is_refused_at_once():
    served = Served()
    await served.says(ASK, BROKEN_BODY)
    assert served.statuses == ["200", "400"] and served.wire.closed
    for name, value in connections.SECURITY_HEADERS.items():
        assert f"{name}: {value}\r\n" in served.wire.said.decode()


async def test_nothing_is_read_while_requests_wait():
    served = Served()
    await served.says(LATER + LATER + ASK)
    for _ in range(2):
        assert not served.wire.is_read
        served.go_on.release()
        await settled()
    assert served.statuses == ["200"] * 3 and served.wire.is_read


async def test_whoever_is_answered_hears_that_the_connection_is_lost():
    served = Served()
    await served.says(LATER + ASK)
    served.protocol.connection_lost(None)
    served.go_on.release()
    await settled()
    assert served.left == 1 and served.asked == []


async def test_what_comes_behind_a_body_is_no_header():
    served = Served()
    head = b"POST /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    await served.says(head + b"2\r\nhi\r\n0\r\nX-User: 7\r\nX-More: 8\r\n\r\n" + ASK)
    assert [set(one) for one in served.heads] == [{b"host", b"transfer-encoding"}, {b"host"}]


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /a HTTP/1.1\r\n", id="no host"),
        pytest.param(b"GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n", id="two hosts"),
        pytest.param(b"GET /a\r\n", id="HTTP/0.9"),
        pytest.param(
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n", id="gzip"
        ),
        pytest.param(TWO_LENGTHS, id="two lengths"),
    ],
)
async def test_what_others_might_read_differently_is_refused(head):
    served = Served()
    await served.says(head + b"\r\n0\r\n\r\n" + ASK)
    assert served.statuses == ["400"] and served.wire.closed and not served.asked


async def test_a_connection_that_does_not_ask_ends():
    begun, silent, asks = Served(), Served(), Served()
    for _ in range(4):
        await asyncio.sleep(5)
        await begun.says(b"GET /")
        await asks.says(ASK)
    assert begun.wire.closed and silent.wire.closed
    assert not asks.wire.closed and asks.statuses == ["200"] * 4


async def test_a_body_may_take_its_time():
    served = Served()
    await served.says(b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\n")
    for _ in range(10):
        await asyncio.sleep(20)
        await served.says(b"x")
    assert served.asked == [("/a", b"x" * 10)] and not served.wire.closed


async def test_many_good_requests_add_up_to_nothing():
    served = Served()
    for _ in range(300):
        await served.says(ASK[:-2] + b"A: " + b"x" * 1000 + b"\r\n\r\n")
    assert served.statuses == ["200"] * 300


async def test_an_answer_of_known_length_leaves_in_one_piece():
    served = Served()
    await served.says(KNOWN, KNOWN.replace(b"GET", b"HEAD"), KNOWN)
    assert [one.count(b"HTTP/1.1 200") for one in served.wire.writes] == [1, 1, 1]
    assert [one.partition(b"\r\n\r\n")[2] for one in served.wire.writes] == [b"done", b"", b"done"]


async def test_who_waits_for_an_answer_of_unknown_length_is_told_so_at_once():
    served = Served()
    await served.says(LATER)
    assert served.statuses == ["200"] and b"done" not in served.wire.said
    served.go_on.release()
    await settled()
    assert b"done" in served.wire.said


async def test_a_connection_that_was_refused_does_not_hold_up_the_end_of_the_server():
    served = Served()
    await served.says(KNOWN)
    await served.says(TWO_LENGTHS + b"\r\n0\r\n\r\n")
    served.protocol.shutdown()
    assert served.statuses == ["200", "400"] and served.wire.closed


async def test_a_stream_ends_with_the_server_at_once_and_other_answers_are_completed(caplog):
    stream, known, stuck = Served(), Served(), Served()
    await stream.says(LATER)
    await known.says(LATER.replace(b"later", b"known-later"))
    await stuck.says(b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\nx")
    for served in (stream, known, stuck):
        served.protocol.shutdown()
    await settled()
    assert stream.wire.closed and not known.wire.closed and not stuck.wire.closed
    for served in (stream, known):
        served.go_on.release()
    await settled()
    assert stream.left == 1 and known.wire.said.endswith(b"done") and known.wire.closed
    await asyncio.sleep(2.9)  # Before the server cancels what is left.
    assert stuck.wire.closed and stuck.left == 1
    assert not caplog.records


@pytest.mark.parametrize(
    ("files", "connections_then"), [(20_000, 1000), (-1, 1000), (1024, 824), (256, 128), (10, 5)]
)
def test_connections_leave_room_for_other_files(files, connections_then):
    assert connections.most_connections(files) == connections_then
