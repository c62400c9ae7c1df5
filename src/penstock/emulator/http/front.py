"""One port for two protocols: gRPC is passed on to its server, HTTP/1.1 is answered here.

What a connection is shows in its first bytes. Passing on costs a copy a chunk, which is nothing
beside what gRPC does with it.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from penstock.errors import UnavailableError

# How every HTTP/2 connection begins, and no request of HTTP/1 does.
_HTTP2 = b"PRI * HTTP/2.0"
_BACKLOG = 1024


class Front:
    """`answer` makes the protocol of an HTTP/1.1 connection."""

    def __init__(self, answer: Callable[[], asyncio.Protocol]) -> None:
        self._answer = answer
        self._behind = _Abstract() if sys.platform == "linux" else _InFolder()
        self._server: asyncio.Server | None = None
        # The loop holds them while they are open, whoever serves them.
        self._open: WeakSet[asyncio.BaseTransport] = WeakSet()

    @property
    def behind(self) -> str:
        """Where the gRPC server is to listen, in its words."""
        return self._behind.for_grpc

    async def listen(self, host: str, port: int) -> int:
        """Returns the port."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host, port, backlog=_BACKLOG)
        except OSError as error:
            raise UnavailableError(
                f"Cannot listen on {host}:{port}: {error.strerror}; choose another port"
            ) from None
        return int(self._server.sockets[0].getsockname()[1])

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        for transport in list(self._open):
            transport.close()
        self._behind.close()

    def _accept(self) -> asyncio.Protocol:
        return _Incoming(self._behind.path, self._answer, self._open)


class _Abstract:
    """A socket without a file: no name can be too long for it, and none is left behind."""

    def __init__(self) -> None:
        name = f"penstock-{secrets.token_hex(8)}"
        self.for_grpc = f"unix-abstract:{name}"
        self.path = f"\0{name}"

    def close(self) -> None:
        pass


class _InFolder:
    """Where there are none such."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="penstock-")
        self.path = f"{self._folder}/grpc"
        self.for_grpc = f"unix:{self.path}"

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class _Incoming(asyncio.Protocol):
    """A connection until it has shown what it is."""

    def __init__(
        self,
        behind: str,
        answer: Callable[[], asyncio.Protocol],
        opened: WeakSet[asyncio.BaseTransport],
    ) -> None:
        self._behind = behind
        self._answer = answer
        self._opened = opened
        self._seen = b""
        self._transport: Any = None
        self._joining: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._opened.add(transport)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if self._joining is not None:
            return
        if self._seen.startswith(_HTTP2):
            self._transport.pause_reading()
            # Ends when both sides are joined, or with the connection.
            self._joining = asyncio.get_running_loop().create_task(self._join())
        elif not _HTTP2.startswith(self._seen):
            protocol = self._answer()
            self._transport.set_protocol(protocol)
            protocol.connection_made(self._transport)
            protocol.data_received(self._seen)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        if self._joining is not None:
            self._joining.cancel()

    async def _join(self) -> None:
        loop = asyncio.get_running_loop()
        outer = _Side()
        try:
            _, inner = await loop.create_unix_connection(_Side, self._behind)
        except OSError:
            self._transport.abort()
            return
        outer.other, inner.other = inner, outer
        self._transport.set_protocol(outer)
        outer.connection_made(self._transport)
        outer.data_received(self._seen)
        self._transport.resume_reading()


class _Side(asyncio.Protocol):
    """One end of what is passed on: it goes to the other, as fast as that takes it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        if self.other is not None:
            self.other.transport.close()
