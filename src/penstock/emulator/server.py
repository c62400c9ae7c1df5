"""The emulator: Google's protocol on one port of loopback, in front of a broker."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Self

from penstock.broker import Broker
from penstock.clock import Clock
from penstock.connect import connect
from penstock.emulator.completing import completed
from penstock.emulator.completing.passing import PassingOn
from penstock.emulator.http.front import Front
from penstock.emulator.services import Services
from penstock.emulator.serving import grpc_server
from penstock.emulator.store import Store
from penstock.googlepubsub.names import Names
from penstock.lifetime import AsyncClosing

_log = logging.getLogger("penstock")
_LOOPBACK = "127.0.0.1"
# What is just ending may do so by itself; gRPC says it in the log when it is cut short.
_ENDING = 0.1


class Emulator(AsyncClosing):
    """Use it with `async with`; `address` is what clients are told, in PUBSUB_EMULATOR_HOST.

    `broker` is an address or a broker that is open already, which stays open. `port` 0 takes a
    free one. `folder`: where labels, policies and schemas are kept across restarts. `config`: a
    TOML or YAML file of topics, subscriptions and schemas that are to be there.
    """

    def __init__(
        self,
        broker: str | Broker = "memory://",
        *,
        host: str = _LOOPBACK,
        port: int = 0,
        project: str = "penstock",
        folder: Path | None = None,
        config: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._given = broker
        self._host = host
        self.port = port
        self._names = Names(project)
        self._folder = folder
        self._config = config
        self._clock = clock or Clock()
        self._broker: Broker | None = None
        self._project_before = ""
        self._services: Services | None = None
        self._server: Any = None
        self._front: Front | None = None

    @property
    def address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.aclose()
            raise

    async def _start(self) -> None:
        given = self._given
        opened = await connect(given, clock=self._clock) if isinstance(given, str) else given
        self._project_before, opened.project = opened.project, self._names.project
        self._broker = completed(opened, self._clock)
        self._services = Services(self._broker, self._names, self._store(opened), self._clock)
        if self._config is not None:
            from penstock.emulator.provisioning import provision, read

            await provision(read(self._config), self._names.project, self._services.serve)
        self._front = Front(self._http)
        self._server = await grpc_server(self._services.serve)
        self._server.add_insecure_port(self._front.behind)
        await self._server.start()
        self.port = await self._front.listen(self._host, self.port)
        await self._services.pushers.start()

    async def aclose(self) -> None:
        """Streams end at once: what their clients have not seen goes back. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace=_ENDING)
        front, self._front = self._front, None
        if front is not None:
            await front.aclose()
        if self._services is not None:
            await self._services.aclose()
        broker, self._broker = self._broker, None
        if broker is not None:
            await self._let_go(broker)

    async def _let_go(self, broker: Broker) -> None:
        """A broker that is somebody else's is left as it was."""
        if isinstance(self._given, str):
            await broker.aclose()
            return
        if isinstance(broker, PassingOn):
            await broker.stop()
        self._given.project = self._project_before

    def _store(self, broker: Broker) -> Store:
        if self._folder is not None:
            return Store(self._folder / "emulator")
        if broker.capabilities.durable:
            _log.warning(
                "Messages outlive this emulator; labels, policies, schemas and push configurations "
                "do not, unless it is given a folder"
            )
        return Store()

    def _http(self) -> asyncio.Protocol:
        # Most clients speak gRPC: this is loaded with the first that does not.
        from penstock.emulator.http.connection import HttpConnection, Rest

        assert self._services is not None  # noqa: S101 - connections come after the start
        return HttpConnection(Rest(self._services))
