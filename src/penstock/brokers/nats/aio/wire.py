"""The lean way through: nats-py keeps the connection, this reads and writes what is hot.

nats-py spends some 40 microseconds of Python on each message it sends or receives, most of it on
a task, a future or an object per message. Publishing, pulling, settling and reading ranges need
none of these, and the server can take several times that rate. So the parser of nats-py's
connection is replaced by one that hands messages of our own subscriptions straight to a function
and leaves everything else to nats-py, and our writes go to its transport in one piece per batch.

This is the only place that knows nats-py's insides; everywhere else it is used as its documentation
says. `check_compatible` tells when the insides are others.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import nats.aio.client
import nats.errors
from nats.aio.subscription import Subscription
from nats.protocol.parser import Parser

from penstock.brokers.nats.aio.parser import LeanParser, RunSink, Sink
from penstock.brokers.nats.protocol.errors import connection_lost
from penstock.errors import InternalError, UnavailableError

if TYPE_CHECKING:
    from nats.aio.transport import Transport

# Bytes that are written before waiting for the socket to take them.
WRITE_CHUNK = 512 * 1024
_LINGER = 5.0


def check_compatible() -> None:
    """Fail early and clearly if this version of nats-py is not built as we expect."""
    client = nats.aio.client.Client()
    subscription = Subscription(client)
    for part, names in (
        (client, ("options", "_ps", "_transport", "_process_msg", "_process_ping")),
        (client, ("_process_pong", "_process_op_err", "_remove_sub")),
        (subscription, ("_id", "_stop_processing")),
        (Parser, ("parse", "reset")),
    ):
        for name in names:
            if not hasattr(part, name):
                kind = part if isinstance(part, type) else type(part)
                raise InternalError(
                    f"This version of nats-py has no {kind.__name__}.{name}; install the version "
                    "that penstock[nats] asks for"
                )


class Wire:
    """Raw subscriptions and writes on a connection of nats-py."""

    def __init__(self, client: nats.aio.client.Client) -> None:
        self._client = client
        self._sinks: dict[bytes, Sink] = {}
        self._losses: list[Callable[[], None]] = []
        self.timeout = 5.0
        self._parser = LeanParser(client, self._sinks)
        self._parser.on_reset = self._on_reset
        client._ps = self._parser

    async def subscribe_runs(self, subject: str, rest: bytes, sink: RunSink, other: Sink) -> None:
        """Like `subscribe` for answers that come by the thousand and all look alike.

        Messages without headers on `subject`, whose last token and payload match `rest`, go to
        `sink` in runs, as the groups of the pattern; `other` gets those that look different.
        """
        await self.subscribe(f"{subject}.>", other)
        sid = next(sid for sid, known in self._sinks.items() if known is other)
        pattern = rb"MSG %b\.%b" % (re.escape(subject.encode()), rest % sid)
        self._parser.alike = (re.compile(pattern), sink)

    @property
    def max_payload(self) -> int:
        return int(self._client.max_payload)

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    def check_connected(self) -> None:
        if not self._client.is_connected:
            raise UnavailableError(
                "Not connected to the NATS server; a reconnect is being attempted"
                if not self._client.is_closed
                else "The connection to the NATS server is closed"
            )

    def reconnect_for_ever(self) -> None:
        """nats-py is told once, when it connects; this is for those who were connected."""
        self._client.options["allow_reconnect"] = True
        self._client.options["max_reconnect_attempts"] = -1

    def abort(self) -> None:
        """Drop the connection without waiting for a peer that may never read again."""
        writer = getattr(self._client._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    def _on_reset(self) -> None:
        # nats-py is about to reconnect, and would first wait for what is unsent to be sent.
        if self._client.is_reconnecting:
            self.abort()

    async def subscribe(
        self, subject: str, sink: Sink, *, queue: str = ""
    ) -> Callable[[], Awaitable[None]]:
        """Messages on `subject` go to `sink`, also after a reconnect; returns how to end it."""
        self.check_connected()
        subscription = await self._client.subscribe(subject, queue=queue, cb=_ignore)
        sid = str(subscription._id).encode()
        self._sinks[sid] = sink
        # nats-py sends this in its own time; our writes must not overtake it.
        try:
            await self._client.flush()
        except (nats.errors.Error, TimeoutError) as error:
            raise connection_lost(error) from error

        async def unsubscribe() -> None:
            if self._client.is_connected:
                await subscription.unsubscribe()
            else:
                # Nobody to tell; it must only not be subscribed again with the next connection.
                self._client._remove_sub(subscription._id)
                subscription._stop_processing()
            # What the server sent before it knew must still find its sink.
            loop = asyncio.get_running_loop()
            loop.call_later(_LINGER, lambda: self._sinks.pop(sid, None))

        return unsubscribe

    async def write(self, parts: list[bytes]) -> None:
        """Send complete operations, in order, waiting when the socket is behind."""
        self.check_connected()
        try:
            async with asyncio.timeout(self.timeout):
                await self._write(parts)
        except TimeoutError:
            self.abort()
            raise UnavailableError(
                f"The NATS server did not take what was sent within {self.timeout:g} s; "
                "connecting anew"
            ) from None

    async def _write(self, parts: list[bytes]) -> None:
        transport = cast("Transport", self._client._transport)
        pending: list[bytes] = []
        size = 0
        try:
            for part in parts:
                pending.append(part)
                size += len(part)
                if size >= WRITE_CHUNK:
                    transport.write(b"".join(pending))
                    pending.clear()
                    size = 0
                    await transport.drain()  # type: ignore[no-untyped-call]
            transport.write(b"".join(pending))
            await transport.drain()  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError) as error:
            raise connection_lost(error) from error

    def on_loss(self, act: Callable[[], None]) -> None:
        """Call `act` when the connection is lost."""
        self._losses.append(act)

    def lost(self) -> None:
        """The connection is gone: nobody will answer what was asked on it."""
        for act in self._losses:
            act()


async def _ignore(_message: Any) -> None:
    """Only there because nats-py wants somebody to call; the parser never gets that far."""
