"""A network that misbehaves on demand: a TCP proxy on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

_CHUNK = 65536


class FaultyProxy:
    """Stands between a client and a server, and does what the network might.

    `cut` breaks every connection. `freeze` keeps them open and lets nothing through, as a dead
    peer does, until `thaw`. `throttle` slows both ways down. `replies` may change or swallow what
    the server sends.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.port = 0
        self.throttle: float | None = None
        """Bytes a second each way; None for no limit."""
        self.refusing = False
        """New connections are closed at once."""
        self.replies: Callable[[bytes], bytes] = bytes

    def freeze(self) -> None:
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        for link in list(self._links):
            link.cancel()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.thaw()
        self.cut()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        if self.refusing or link is None:
            writer.close()
            return
        self._links.add(link)
        other: asyncio.StreamWriter | None = None
        try:
            back, other = await asyncio.open_connection(*self._target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, other, bytes))
                both.create_task(self._pump(back, writer, lambda data: self.replies(data)))
        except (OSError, asyncio.CancelledError, ExceptionGroup):
            pass
        finally:
            self._links.discard(link)
            for end in (writer, other):
                if end is not None:
                    with suppress(OSError, RuntimeError):
                        end.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        change: Callable[[bytes], bytes],
    ) -> None:
        while data := await reader.read(_CHUNK if self.throttle is None else 1):
            await self._flowing.wait()
            if self.throttle is not None:
                await asyncio.sleep(len(data) / self.throttle)
            writer.write(change(data))
            await writer.drain()
        raise ConnectionResetError


@asynccontextmanager
async def faulty_proxy(host: str, port: int) -> AsyncIterator[FaultyProxy]:
    """A running proxy to `host:port`; connect to `127.0.0.1:proxy.port` instead."""
    proxy = FaultyProxy(host, port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
