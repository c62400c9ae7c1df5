"""The connection of a process to its broker: made when needed, made again when told, never shared
with a child."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import Enum
from urllib.parse import urlsplit

from penstock.broker import Broker
from penstock.client import PubSub
from penstock.clock import Clock
from penstock.connect import connect
from penstock.errors import ClosedError, PenstockError
from penstock.retrying import Persistence, retry
from penstock.rules.backoff import Backoff

Connect = Callable[[], Awaitable[Broker]]


class ConnectionState(Enum):
    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    """It was connected, and does not answer or is being made again."""
    CLOSED = "closed"


class BridgeConnection:
    """One connection for everything a bridge does in a process.

    A forked child finds it disconnected and connects for itself: what it inherited belongs to its
    parent and is neither used nor closed. A connection belongs to the event loop that made it.
    """

    def __init__(
        self,
        open_broker: Connect,
        *,
        attempts: int = 3,
        delay: float = 2.0,
        clock: Clock | None = None,
        owns: bool = True,
    ) -> None:
        self._open = open_broker
        self._clock = clock or Clock()
        self._owns = owns
        # About that time between attempts: with jitter, half of its bound on average.
        self._persistence = Persistence(
            backoff=Backoff(initial=2 * delay, maximum=2 * delay), attempts=attempts
        )
        self._forget()
        self._closed = False
        _of_this_process.add(self)

    def _forget(self) -> None:
        self._pubsub: PubSub | None = None
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting: asyncio.Lock | None = None
        self._state = ConnectionState.DISCONNECTED
        self.connected_at: datetime | None = None
        self.reconnects = 0

    def forked(self) -> None:
        """We are in a child."""
        inherited.append((self._pubsub, self._loop))
        self._forget()

    @property
    def state(self) -> ConnectionState:
        return ConnectionState.CLOSED if self._closed else self._state

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop it belongs to, once it is connected."""
        return self._loop

    async def pubsub(self) -> PubSub:
        """The client, connected; connects if need be."""
        self._check()
        pubsub = self._pubsub
        if pubsub is not None and self._loop is asyncio.get_running_loop():
            return pubsub
        return await self._connect()

    async def broker(self) -> Broker:
        return await (await self.pubsub()).broker()

    async def check(self) -> float:
        """Seconds of a round trip. Connects if need be; raises what is in the way."""
        try:
            took = await (await self.broker()).ping()
        except PenstockError:
            if self._state is ConnectionState.CONNECTED:
                self._state = ConnectionState.RECONNECTING
            raise
        self._state = ConnectionState.CONNECTED
        return took

    async def reconnect(self) -> None:
        """Drop the connection, if there is one, and make another. What waits on the old one ends
        with an error."""
        self._check()
        was = self._pubsub
        self._pubsub = None
        self._state = ConnectionState.RECONNECTING if was else ConnectionState.CONNECTING
        if was is not None and self._loop is asyncio.get_running_loop():
            await self._close(was)
        self.reconnects += 1
        await self._connect()

    async def aclose(self) -> None:
        """Idempotent, and safe before it was used."""
        self._closed = True
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None and self._loop is asyncio.get_running_loop():
            await self._close(pubsub)

    async def _connect(self) -> PubSub:
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._connecting is None:
            # A new loop, perhaps in a child: nothing of another loop can be used here.
            self._loop, self._connecting, self._pubsub = loop, asyncio.Lock(), None
        async with self._connecting:
            if self._pubsub is not None:
                return self._pubsub
            again = self._state is ConnectionState.RECONNECTING
            self._state = ConnectionState.RECONNECTING if again else ConnectionState.CONNECTING
            try:
                broker = await retry(self._open, self._persistence)
            except PenstockError:
                self._state = ConnectionState.DISCONNECTED
                raise
            if self._closed:
                await broker.aclose()
                self._check()
            self._pubsub = PubSub(broker=broker, clock=self._clock)
            self._state = ConnectionState.CONNECTED
            self.connected_at = datetime.now(UTC)
            return self._pubsub

    async def _close(self, pubsub: PubSub) -> None:
        broker = await pubsub.broker()
        await pubsub.aclose(timeout=0)
        if self._owns:
            await broker.aclose()

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("This bridge is closed; make a new one")
        if self._pid != os.getpid():
            self.forked()


def opener(url: str, stream: str, dlq_stream: str, clock: Clock | None = None) -> Connect:
    """How to connect to `url` for one bridge."""
    address = _address(url, stream, dlq_stream)

    async def open_broker() -> Broker:
        return await connect(address, clock=clock)

    return open_broker


def servers(url: str) -> list[str]:
    """Where an address leads, without credentials."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    if not hosts:
        return [f"{parts.scheme}://"]
    return [f"{parts.scheme}://{host}" for host in hosts.split(",")]


def _address(url: str, stream: str, dlq_stream: str) -> str:
    """On a NATS server names of consumers are per stream, and two bridges may have the same: say
    where to look. It also spares asking, for those who may not."""
    if not url.startswith(("nats://", "tls://")) or "topics=" in urlsplit(url).query:
        return url
    return f"{url}{'&' if '?' in url else '?'}topics={stream},{dlq_stream}"


_of_this_process: weakref.WeakSet[BridgeConnection] = weakref.WeakSet()
inherited: list[object] = []
"""What a parent has open: kept, so that nobody closes in a child what the parent goes on using."""


def _after_fork() -> None:
    for connection in list(_of_this_process):
        connection.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
