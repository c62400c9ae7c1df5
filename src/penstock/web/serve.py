"""Serving the API: start, announce, stop in order."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from litestar import Litestar

from penstock.errors import UnavailableError
from penstock.web.connections import Protocol

_log = logging.getLogger("penstock.web")


async def serve(
    app: Litestar,
    host: str,
    port: int,
    *,
    on_ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until `stop` is set or this is cancelled. Port 0 takes a free one; `on_ready` is told
    the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
    except OSError as error:
        listener.close()
        raise UnavailableError(
            f"Cannot listen on {host} port {port}: {error.strerror}; choose another port"
        ) from None
    taken = listener.getsockname()[1]
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            # Nothing is made of a client's address.
            proxy_headers=False,
            timeout_graceful_shutdown=3,
            timeout_keep_alive=15,
            http=Protocol,
            lifespan="on",
        )
    )
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    starting = asyncio.ensure_future(server.ready.wait())
    try:
        await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
        if server.ready.is_set():
            shown = f"http://{f'[{host}]' if ':' in host else host}:{taken}"
            _log.info("The API listens on %s", shown)
            if on_ready is not None:
                on_ready(shown)
        waiting = asyncio.ensure_future((stop or asyncio.Event()).wait())
        try:
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
    finally:
        starting.cancel()
        server.should_exit = True
        await asyncio.wait({serving})
        listener.close()
    if not serving.cancelled() and (failure := serving.exception()) is not None:
        raise failure


class _Server(uvicorn.Server):
    """Says when it is ready, and leaves signals to whoever runs us."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
