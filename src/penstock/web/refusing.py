"""What is answered before there is a request: to what is no HTTP, to one that does not end, and to
one connection too many.

uvicorn would answer by itself, without the headers that all answers carry. And its parser in C, a
fifth of what a request costs cheaper than that in Python, has no bound for headers, reads on while
answers are made, and takes what it should not.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MOST_CONNECTIONS = 1000
# Bytes of an address and of headers; and of what comes and is neither a request nor part of one's
# body: a line that does not end, trailers, or notes about the pieces that a body comes in.
MOST_HEADERS = 64 * 1024
# Requests of one connection that wait for their turn: all that one read brings would be thousands.
MOST_WAITING = 100


class Protocol(HttpToolsProtocol):
    """An answer is never written into another one, nor instead of one that is still to come."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._headers_read = 0
        self._unused = 0
        self._in_head = True
        self._is_ending = False
        self._answered: RequestResponseCycle | None = None

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; try again later")
        else:
            self._expect_request()

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        self._unused += len(data)
        try:
            self._read(data)
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST, "Invalid HTTP request received.")
            return
        if self._unused > MOST_HEADERS:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "That is no request")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        # uvicorn tells the last request of a connection, which need not be the one in hand.
        if (cycle := self._answered) is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _expect_request(self) -> None:
        """Soon, or the connection ends."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _read(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as wish:
                # Nothing else is spoken here. The parser takes a body for what is spoken then, so
                # the request is read again, without the wish.
                data = self._head_without_upgrade() + data[wish.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        first = self.parser.get_method() + b" " + self.url + b" HTTP/" + version
        lines = (name + b": " + value for name, value in self.headers if name != b"upgrade")
        return b"\r\n".join([first, *lines, b"", b""])

    # What the parser finds. An error ends the connection, as all that is no HTTP.

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_WAITING:
            raise ValueError("Too many requests at once")
        self._headers_read = 0
        self._in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        # What comes behind a body is no header, whatever its name.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unused = 0
        self._in_head = False
        self._check_head()
        if not self.parser.should_upgrade():
            self._unset_keepalive_if_required()
            super().on_headers_complete()
            if not self.pipeline:
                self._answered = self.cycle

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        self._unset_keepalive_if_required()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self.cycle.response_complete:
            self._expect_request()

    def _count(self, size: int) -> None:
        self._headers_read += size
        if self._headers_read > MOST_HEADERS:
            raise ValueError("Too many headers")

    def _check_head(self) -> None:
        """What others might read differently: a proxy before us, or what knows sites by name."""
        version = self.parser.get_http_version()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if version not in ("1.0", "1.1") or hosts > 1 or (hosts == 0 and version == "1.1"):
            raise ValueError("Not for one host")
        if any(n == b"transfer-encoding" and v.lower() != b"chunked" for n, v in self.headers):
            raise ValueError("Encoded in ways that nobody undoes")
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("No proxy")

    # Answers.

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._answered = self.pipeline[-1][0]
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        """At once, unless requests before it wait for their answers: then the connection ends
        with the last of these, and whoever asks for more knows that it was not read."""
        self._is_ending = True
        last = self._last_whole()
        if last is not None and not last.response_complete and not last.more_body:
            last.keep_alive = False
            return
        if last is None or last.response_complete or not last.response_started:
            body = why.encode()
            headers = {
                "Content-Type": "text/plain; charset=utf-8",
                "Content-Length": str(len(body)),
                "Connection": "close",
                **SECURITY_HEADERS,
            }
            lines = [f"HTTP/1.1 {status} {status.phrase}", *map(": ".join, headers.items())]
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()

    def _last_whole(self) -> RequestResponseCycle | None:
        """The last request that came; without one that waits for its turn and is not whole, which
        nobody will answer."""
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
            return self.pipeline[0][0] if self.pipeline else self._answered
        return self.cycle
