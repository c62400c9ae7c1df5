"""A few pages over HTTP for whoever looks after a process: alive, ready, its numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

from penstock.errors import UnavailableError

Page: TypeAlias = Callable[[], tuple[int, str]]
"""A status and a text."""

_PATIENCE = 5.0
_LONGEST_REQUEST = 8192
_MEANING = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@asynccontextmanager
async def serving(pages: Mapping[str, Page], host: str, port: int) -> AsyncIterator[int]:
    """Serve them while entered; yields the port, which is a free one for 0."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.LimitOverrunError, ValueError):
            async with asyncio.timeout(_PATIENCE):
                request = (await reader.readuntil(b"\r\n")).decode("latin-1").split()
                writer.write(_response(pages, request))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, host, port, limit=_LONGEST_REQUEST)
    except OSError as error:
        raise UnavailableError(
            f"Cannot listen on {host}:{port}: {error.strerror}; choose another port"
        ) from None
    async with server:
        yield server.sockets[0].getsockname()[1]


def _response(pages: Mapping[str, Page], request: list[str]) -> bytes:
    method, path = [*request, "", ""][:2]
    page = pages.get(path.partition("?")[0])
    if method not in ("GET", "HEAD"):
        status, text = 405, "GET only\n"
    elif page is None:
        status, text = 404, f"There are {', '.join(pages)}\n"
    else:
        status, text = page()
    body = text.encode()
    head = (
        f"HTTP/1.1 {status} {_MEANING.get(status, '')}\r\n"
        f"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)
