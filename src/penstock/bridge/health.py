"""How a bridge is: connection, broker, lag, outbox, dead letters."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from penstock.bridge.connection import BridgeConnection, ConnectionState, servers
from penstock.bridge.settings import BridgeSettings
from penstock.broker import Broker
from penstock.config import SubscriptionName
from penstock.errors import PenstockError, PermissionDeniedError, UnimplementedError

if TYPE_CHECKING:
    from penstock.bridge.consumer import Consumer
    from penstock.bridge.outbox import EventOutbox
    from penstock.transactional import Inbox

T = TypeVar("T")
Health: TypeAlias = dict[str, Any]
"""Of plain values, to be written as JSON."""

KEPT = 30.0
_WITHIN = 10.0


class Timings:
    """How long handlers take, lately: each counts a tenth of what the ones before it did."""

    def __init__(self) -> None:
        self.milliseconds: float | None = None

    def handled(self, seconds: float) -> None:
        taken = seconds * 1000
        before = self.milliseconds
        self.milliseconds = taken if before is None else before + (taken - before) / 10


class Bridged(Protocol):
    """What is looked at."""

    settings: BridgeSettings
    connection: BridgeConnection

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...
    @property
    def timings(self) -> Timings: ...
    @property
    def consumers(self) -> Sequence[Consumer]: ...
    @property
    def outbox(self) -> EventOutbox | None: ...
    @property
    def inbox(self) -> Inbox | None: ...


class HealthCheck:
    """Looks at a bridge, on the bridge's own event loop, at most once in 30 seconds."""

    def __init__(self, bridge: Bridged) -> None:
        self._bridge = bridge
        self._lock = threading.Lock()
        self._cached: tuple[float, Health] | None = None

    async def check(self, *, skip_cache: bool = False) -> Health:
        with self._lock:
            cached = self._cached
        if cached is not None and not skip_cache and time.monotonic() - cached[0] < KEPT:
            return cached[1]
        health = await self._on_its_loop()
        with self._lock:
            self._cached = (time.monotonic(), health)
        return health

    async def _on_its_loop(self) -> Health:
        """What the bridge has open belongs to its loop, whoever asks."""
        loop = self._bridge.loop
        if loop is None or not loop.is_running() or loop is asyncio.get_running_loop():
            return await self._look()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._look(), loop))

    async def _look(self) -> Health:
        began = time.monotonic()
        bridge, settings = self._bridge, self._bridge.settings
        wrong: list[str] = []
        broker = await _try("connection", self._connected, wrong)
        jetstream = await _try("jetstream", lambda: _usage(broker), wrong)
        consumer = await _try("consumer", lambda: self._lag(broker), wrong)
        letters = await _try("dead letters", lambda: self._dead_letters(broker), wrong)
        outbox = await _try("outbox", self._outbox, wrong)
        inbox = await _try("inbox", self._inbox, wrong)
        dead = any(one.failed for one in bridge.consumers)
        if dead:
            wrong.append(f"consumer: {settings.names.durable} ended by itself; start it again")
        connection = bridge.connection
        live = connection.state is not ConnectionState.CLOSED and not dead
        ready = connection.state is ConnectionState.CONNECTED and not wrong
        took = (time.monotonic() - began) * 1000
        return {
            "healthy": live and ready,
            "live": live,
            "ready": ready,
            "errors": wrong,
            "connection": {
                "status": connection.state.value,
                "servers": servers(settings.url),
                "connected_at": _written(connection.connected_at),
                "reconnects": connection.reconnects,
            },
            "jetstream": jetstream,
            "consumer": consumer,
            "outbox": outbox,
            "inbox": inbox,
            "dead_letters": letters,
            "config": {
                "stream_name": settings.stream_name,
                "app_name": settings.app_name,
                "destination_app": settings.destination_app,
                "use_outbox": settings.use_outbox,
                "use_inbox": settings.use_inbox,
                "use_dlq": settings.use_dlq,
            },
            "performance": {
                "message_processing_time_ms": _rounded(bridge.timings.milliseconds),
                "last_health_check_ms": _rounded(took),
            },
            "checked_at": _written(datetime.now(UTC)),
        }

    async def _connected(self) -> Broker:
        await self._bridge.connection.check()
        return await self._bridge.connection.broker()

    async def _lag(self, broker: Broker | None) -> Health | None:
        if broker is None:
            return None
        names = self._bridge.settings.names
        name = names.durable
        address = SubscriptionName(name, names.stream_name)
        status = await broker.admin.describe_subscription(address)
        return {
            "name": name,
            "lag": status.backlog,
            "in_hand": status.leased,
            "oldest_age_seconds": _rounded(status.oldest_age),
            "receiving": any(one.receiving.is_set() for one in self._bridge.consumers),
        }

    async def _dead_letters(self, broker: Broker | None) -> Health | None:
        if broker is None or broker.log is None or not self._bridge.settings.use_dlq:
            return None
        stream = self._bridge.settings.names.dlq_stream
        extent = await broker.log.extent(stream)
        return {"stream": stream, "messages": max(0, extent.last - extent.first + 1)}

    async def _outbox(self) -> Health | None:
        events = self._bridge.outbox
        if events is None:
            return None
        status = await events.status()
        return {
            "pending": status.pending,
            "publishing": status.claimed,
            "waiting": status.waiting,
            "failed": status.dead,
            "oldest_age_seconds": _rounded(status.oldest_age),
        }

    async def _inbox(self) -> Health | None:
        inbox = self._bridge.inbox
        return None if inbox is None else asdict(await inbox.status())


async def _usage(broker: Broker | None) -> Health | None:
    if broker is None:
        return None
    usage = await broker.admin.usage()
    return {
        "streams": usage.topics,
        "consumers": usage.subscriptions,
        "memory_bytes": usage.memory_bytes,
        "storage_bytes": usage.storage_bytes,
    }


async def _try(what: str, look: Callable[[], Awaitable[T]], wrong: list[str]) -> T | None:
    """What it finds; what we may not know is None, and what is wrong is written down."""
    looking = asyncio.ensure_future(look())
    try:
        await asyncio.wait({looking}, timeout=_WITHIN)
    finally:
        # Cancelled and not waited for: a driver whose server is stopped ends only with it.
        looking.cancel()
    if not looking.done():
        wrong.append(f"{what}: no answer within {_WITHIN:g} s")
        return None
    try:
        return looking.result()
    except (PermissionDeniedError, UnimplementedError):
        return None
    except PenstockError as error:
        wrong.append(f"{what}: {error}")
    except Exception as error:
        wrong.append(f"{what}: {type(error).__name__}")
    return None


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def _written(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z") if moment else None
