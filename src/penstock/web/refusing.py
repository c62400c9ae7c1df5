"""What is answered before there is a request: to what is no HTTP, to one that does not begin for
too long, and to one connection too many.

uvicorn would answer by itself, without the headers that all answers carry, and its parser in C, a
fifth of what a request costs cheaper than that in Python, has no bound for headers.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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


class Protocol(HttpToolsProtocol):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._headers_read = 0
        self._unused = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; try again later")

    def data_received(self, data: bytes) -> None:
        self._unused += len(data)
        super().data_received(data)
        if self._unused > MOST_HEADERS and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "That is no request")

    def on_message_begin(self) -> None:
        self._headers_read = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unused = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        super().on_body(body)

    def _count(self, size: int) -> None:
        self._headers_read += size
        if self._headers_read > MOST_HEADERS:
            raise ValueError("Too many headers")  # Ends the connection, as all that is no HTTP.

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not (is_answering and self.cycle.response_started):
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
