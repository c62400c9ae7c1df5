"""The lean way through: nats-py keeps the connection, this reads and writes what is hot.

nats-py spends some 40 microseconds of Python on each message it sends or receives, most of it on
a task, a future or an object per message. Publishing, pulling, settling and reading ranges need
none of these, and the server can take several times that rate. So the parser of nats-py's
connection is replaced by one that hands messages of our own subscriptions straight to a function
and leaves everything else to nats-py, and our writes go to its transport in one piece per batch.

This is the only place that knows nats-py's insides; `check_compatible` says so when they change.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import nats.aio.client
import nats.errors
from nats.protocol.parser import Parser

from penstock.errors import InternalError, UnavailableError

if TYPE_CHECKING:
    from nats.aio.transport import Transport

Sink: TypeAlias = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with subject, reply, header block and payload; empty where there is none."""

BulkSink: TypeAlias = Callable[[list[tuple[bytes, ...]]], None]
"""Called with the groups of each message of a run."""

# Bytes that are written before waiting for the socket to take them.
WRITE_CHUNK = 512 * 1024
_LINGER = 5.0
_KNOWN_ERRORS = ("stale connection", "authorization violation", "permissions violation")


def check_compatible() -> None:
    """Fail early and clearly if this version of nats-py is not built as we expect."""
    client = nats.aio.client.Client()
    for name in (
        *("_ps", "_transport", "_process_msg", "_process_ping", "_process_pong"),
        *("_process_op_err", "_remove_sub"),
    ):
        if not hasattr(client, name):
            raise InternalError(
                f"This version of nats-py has no Client.{name}; install the version that "
                "penstock[nats] asks for"
            )


class LeanParser(Parser):
    """Reads the wire protocol, split wherever it may be.

    Messages of registered subscriptions go to their sinks; all else is nats-py's.
    """

    def __init__(self, client: nats.aio.client.Client, sinks: dict[bytes, Sink]) -> None:
        self._sinks = sinks
        self.bulk: tuple[re.Pattern[bytes], BulkSink] | None = None
        self.on_reset: Callable[[], None] = lambda: None
        super().__init__(client)

    def reset(self) -> None:
        super().reset()
        self.on_reset()
        self._rest = b""
        self._chunks: list[bytes] = []
        self._missing = 0

    async def parse(self, data: bytes = b"") -> None:
        if self._missing > 0:
            # A large payload: gather its parts and join them once.
            self._chunks.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join((self._rest, *self._chunks))
            self._chunks.clear()
        elif self._rest:
            data = self._rest + data
        at = await self._consume(data)
        self._rest = data[at:]

    async def _consume(self, data: bytes) -> int:
        """Handle every complete operation; returns where the first incomplete one begins."""
        at, size, sinks, find = 0, len(data), self._sinks, data.find
        self._missing = 0
        match, take = (self.bulk[0].match, self.bulk[1]) if self.bulk else (None, None)
        while at < size:
            if match is not None and take is not None:
                found = match(data, at)
                if found is not None:
                    run: list[tuple[bytes, ...]] = []
                    while found is not None:
                        run.append(found.groups())
                        at = found.end()
                        found = match(data, at)
                    take(run)
                    continue
            end = find(b"\r\n", at)
            if end < 0:
                return at
            kind = data[at]
            if kind in b"Hh":  # HMSG subject sid [reply] header-size total-size
                words = data[at:end].split()
                header, total = int(words[-2]), int(words[-1])
                reply = words[3] if len(words) == 6 else b""
            elif kind in b"Mm":  # MSG subject sid [reply] size
                words = data[at:end].split()
                header, total = 0, int(words[-1])
                reply = words[3] if len(words) == 5 else b""
            else:
                await self._control(data[at : end + 2])
                at = end + 2
                continue
            begin = end + 2
            end = begin + total
            if end + 2 > size:
                self._missing = end + 2 - size
                return at
            body = begin + header
            sink = sinks.get(words[2])
            if sink is not None:
                sink(words[1], reply, data[begin:body], data[body:end])
            else:
                await self.nc._process_msg(
                    int(words[2]), words[1], reply, data[body:end], data[begin:body] or None
                )
            at = end + 2
        return at

    async def _control(self, line: bytes) -> None:
        """PING, PONG, +OK, -ERR, INFO: nats-py's own parser knows them."""
        if line[:4].upper() == b"-ERR" and self.nc.is_connected:
            # nats-py ends for good on errors it does not know; a new connection may be welcome.
            text = line[4:].strip().decode(errors="replace").lower()
            if not any(known in text for known in _KNOWN_ERRORS):
                await self.nc._process_op_err(nats.errors.Error(f"nats: {text}"))
                return
        await super().parse(line)


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

    async def subscribe_bulk(self, subject: str, rest: bytes, sink: BulkSink, other: Sink) -> None:
        """Like `subscribe` for answers that come by the thousand and all look alike.

        Messages without headers on `subject`, whose last token and payload match `rest`, go to
        `sink` in runs, as the groups of the pattern; `other` gets those that look different.
        """
        await self.subscribe(f"{subject}.>", other)
        sid = next(sid for sid, known in self._sinks.items() if known is other)
        pattern = rb"MSG %b\.%b" % (re.escape(subject.encode()), rest % sid)
        self._parser.bulk = (re.compile(pattern), sink)

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
            # Whoever is cancelled here must not take nats-py's own wait along: the answer would
            # find it cancelled, and end the connection.
            await asyncio.shield(self._client.flush())
        except (nats.errors.Error, TimeoutError) as error:
            raise UnavailableError(f"Lost the connection to the NATS server: {error}") from error

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
            raise UnavailableError(
                f"The connection to the NATS server was lost: {error}"
            ) from error

    def on_loss(self, act: Callable[[], None]) -> None:
        """Call `act` when the connection is lost."""
        self._losses.append(act)

    def lost(self) -> None:
        """The connection is gone: nobody will answer what was asked on it."""
        for act in self._losses:
            act()


async def _ignore(_message: Any) -> None:
    """Only there because nats-py wants somebody to call; the parser never gets that far."""


def publish_operation(subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    """PUB or HPUB, complete. `header` is a whole block or empty; `reply` may be empty."""
    space = b" " if reply else b""
    if not header:
        return b"PUB %b %b%b%d\r\n%b\r\n" % (subject, reply, space, len(payload), payload)
    size = len(header)
    return b"HPUB %b %b%b%d %d\r\n%b%b\r\n" % (
        subject,
        reply,
        space,
        size,
        size + len(payload),
        header,
        payload,
    )
