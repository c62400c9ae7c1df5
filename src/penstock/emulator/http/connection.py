"""One HTTP/1.1 connection: requests one after the other, each answered in full."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

import h11
import msgspec

from penstock.emulator.http.transcoding import answer_of, error_of, find, request_of
from penstock.emulator.services import Services
from penstock.emulator.serving import as_ours
from penstock.errors import InvalidArgumentError, NotFoundError
from penstock.googlepubsub.calls import Travel

_MAX_BODY = 32 * 2**20
_JSON, _TEXT = b"application/json; charset=UTF-8", b"text/plain; charset=UTF-8"

_log = logging.getLogger("penstock")

Answer = tuple[int, bytes, bytes]


class Rest:
    """What paths mean."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def answer(self, verb: str, target: str, body: bytes) -> Answer:
        """Status, type and body; what goes wrong has an answer, too."""
        call = verb
        try:
            parts = _split(target)
            call = f"{verb} {parts.path}"
            return await self._answered(verb, parts, body)
        except Exception as error:
            code, content = error_of(as_ours(call, error))
            return code, _JSON, content

    async def _answered(self, verb: str, parts: SplitResult, body: bytes) -> Answer:
        match verb, parts.path:
            case "GET" | "HEAD", "/" | "":
                return 200, _TEXT, b"Ok\n"
            case "GET" | "HEAD", "/healthz":
                return 200, _TEXT, b"ok\n"
            case "POST", "/reset":
                await self._services.reset()
                return 200, _TEXT, b"Reset.\n"
            case "GET", "/oauth2/v1/certs":
                return 200, _JSON, msgspec.json.encode(self._services.tokens.keys())
        found = find(verb, parts.path)
        if found is None:
            raise NotFoundError(f"There is no {verb} {parts.path} here.")
        route, fields = found
        request = request_of(route, fields, parse_qsl(parts.query), body)
        serve = self._services.serve[route.rpc.name]
        waits = route.rpc.travel is Travel.WAITING
        message = await (serve(request, None) if waits else serve(request))
        return 200, _JSON, answer_of(message)


def _split(target: str) -> SplitResult:
    try:
        return urlsplit(target)
    except ValueError as error:
        raise InvalidArgumentError(f"{target[:100]!r} cannot be asked for: {error}") from None


class HttpConnection(asyncio.Protocol):
    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=64 * 1024)
        self._transport: Any = None
        self._request: h11.Request | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._answering: asyncio.Task[None] | None = None
        self._is_unread = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_busy:
            # Who sends ahead of the answers does not do so without end. Others are still read from:
            # that is how one that leaves is noticed.
            self._transport.pause_reading()
        self._http.receive_data(data)
        self._go_on()

    def pause_writing(self) -> None:
        self._is_unread = True

    def resume_writing(self) -> None:
        self._is_unread = False
        self._go_on()

    @property
    def _is_busy(self) -> bool:
        """An answer is being made, or those that were made are not read."""
        return self._answering is not None or self._is_unread

    def _go_on(self) -> None:
        while not self._is_busy:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint, str(error))
                return
            if isinstance(event, h11.Request):
                self._request, self._body, self._size = event, [], 0
                if self._http.they_are_waiting_for_100_continue:
                    go_ahead = h11.InformationalResponse(status_code=100, headers=[])
                    self._transport.write(self._http.send(go_ahead))
            elif isinstance(event, h11.Data):
                self._size += len(event.data)
                if self._size > _MAX_BODY:
                    self._refuse(413, f"A request has at most {_MAX_BODY} bytes")
                    return
                self._body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                # Ends with the answer, or with the connection.
                self._answering = asyncio.get_running_loop().create_task(self._answer())
            elif event is h11.NEED_DATA or event is h11.PAUSED:
                self._transport.resume_reading()
                return
            elif isinstance(event, h11.ConnectionClosed):
                self._transport.close()
                return

    async def _answer(self) -> None:
        request = self._request
        assert request is not None  # noqa: S101 - the end of a message follows its beginning
        verb, target = request.method.decode(), request.target.decode(errors="replace")
        status, kind, content = await self._rest.answer(verb, target, b"".join(self._body))
        self._send(status, kind, content, with_body=verb != "HEAD")
        self._answering = None
        if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.MUST_CLOSE:
            self._transport.close()
            return
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        self._go_on()

    def _send(self, status: int, kind: bytes, content: bytes, *, with_body: bool = True) -> None:
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
        response = h11.Response(status_code=status, headers=headers)
        out = [self._http.send(response)]
        if with_body:
            out.append(self._http.send(h11.Data(data=content)))
        out.append(self._http.send(h11.EndOfMessage()))
        self._transport.write(b"".join(part for part in out if part))

    def _refuse(self, status: int, why: str) -> None:
        """What is no HTTP ends the connection."""
        _log.debug("A connection was refused: %s", why)
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(status, _TEXT, f"{why}\n".encode())
        self._transport.close()
