"""Connections of clients: how answers leave, how long nothing may be asked, and what is answered to
one too many and to what is no HTTP.

uvicorn would answer by itself, without the headers that all answers carry. It reads with h11:
httptools takes a fifth less for a request, but has no bound for headers, and takes for requests
what others might read differently, so that bodies become requests.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def most_connections(open_files: int) -> int:
    """Where a process may have so many files open, -1 for any number: what it does for clients
    takes some as well."""
    return 1000 if open_files < 0 else min(1000, max(open_files - 200, open_files // 2))


def _may_open() -> int:
    try:
        import resource
    except ImportError:  # Windows, which does not say.
        return -1
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


MOST_CONNECTIONS = most_connections(_may_open())
# Seconds that requests under way have at the end. The server itself waits a little longer.
_GRACE = 2.5


class Connection(h11.Connection):
    """Sends the head of an answer with the beginning of its body: one call to the system here, and
    one for who reads. A body whose length is not known may be long in coming: its head goes first.
    """

    has_length = True
    """Whether the length of the last answer was known when it began."""
    _head = b""

    def next_event(self) -> Any:
        event = super().next_event()
        if type(event) is h11.Request and _has_two_lengths(event):
            raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding")
        return event

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]
        data = super().send(event)
        if type(event) is h11.Response:
            self.has_length = _has_length(event)
            if data and self.has_length:
                self._head = data
                return b""
        if self._head:
            data, self._head = self._head + (data or b""), b""
        return data


def _has_length(message: h11.Request | h11.Response) -> bool:
    return any(name == b"content-length" for name, _ in message.headers)


def _has_two_lengths(request: h11.Request) -> bool:
    """Some go by the one and some by the other, and take the rest for the next request."""
    is_chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
    return is_chunked and _has_length(request)


class Protocol(H11Protocol):
    conn: Connection
    _asks_until = 0.0

    def __init__(self, config: uvicorn.Config, *more: Any, **others: Any) -> None:
        super().__init__(config, *more, **others)
        self.conn = Connection(h11.SERVER)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; try again later")
        else:
            self._asks_until = self.loop.time() + self.timeout_keep_alive
            self._expect_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Which takes a request for begun, whatever came: a byte now and then would keep its place.
        if self._is_asked_nothing() and not self.transport.is_closing():
            self._expect_request()

    def on_response_complete(self) -> None:
        self._asks_until = self.loop.time() + self.timeout_keep_alive
        super().on_response_complete()

    def _should_upgrade(self) -> bool:
        # To nothing. Asked, it would use what happens to be installed, or ask for it in the log.
        return False

    def shutdown(self) -> None:
        """Requests and answers may be completed for a while; a stream of events has no end."""
        if not self.transport.is_closing():  # What was refused has said all it will.
            super().shutdown()
        is_endless = self._has_begun_to_answer() and not self.conn.has_length
        self.loop.call_later(0.0 if is_endless else _GRACE, self._cut_off)

    def _cut_off(self) -> None:
        """As if the client had gone: else the server ends by cancelling whoever answers it, and
        writes that down as a failure of each."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.abort()

    def _has_begun_to_answer(self) -> bool:
        cycle = self.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def _is_asked_nothing(self) -> bool:
        return self.conn.their_state is h11.IDLE

    def _expect_request(self) -> None:
        """By the time for which a connection is kept, or it ends."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_at(
            self._asks_until, self.timeout_keep_alive_handler
        )

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        if not self._has_begun_to_answer():
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
