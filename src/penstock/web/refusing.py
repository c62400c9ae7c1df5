"""What is answered before there is a request: to what is no HTTP, and to one connection too many.

uvicorn would answer by itself, without the headers that all answers carry.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.h11_impl import H11Protocol

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MOST_CONNECTIONS = 1000


class Protocol(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; try again later")

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
