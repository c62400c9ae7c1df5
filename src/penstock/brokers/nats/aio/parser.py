"""What the server sends, handed to whom it is for, however it is cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import nats.aio.client
import nats.errors
from nats.protocol.parser import Parser

from penstock.brokers.nats.protocol.frames import (
    check_body,
    find_end,
    nonsense,
    read_head,
    read_info,
)

Sink: TypeAlias = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with subject, reply, header block and payload; empty where there is none."""

RunSink: TypeAlias = Callable[[list[tuple[bytes, ...]]], None]
"""Called with a run of messages that look alike: the groups of the pattern, for each."""

_KNOWN_ERRORS = ("stale connection", "permissions violation")


class LeanParser(Parser):
    """Reads the wire protocol in place of nats-py's own parser.

    Messages of registered subscriptions go to their sinks; all else is nats-py's. Raises
    `UnavailableError`, which ends the connection, for what no server says.
    """

    def __init__(self, client: nats.aio.client.Client, sinks: dict[bytes, Sink]) -> None:
        self._sinks = sinks
        self.alike: tuple[re.Pattern[bytes], RunSink] | None = None
        self.on_reset: Callable[[], None] = lambda: None
        self._resets = 0
        super().__init__(client)

    def reset(self) -> None:
        """Another connection begins: what was left of the last one is nobody's."""
        super().reset()
        self._resets += 1
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
        resets = self._resets
        at = await self._consume(data)
        if resets == self._resets:
            self._rest = data[at:]

    async def _consume(self, data: bytes) -> int:
        """Handle every complete operation; returns where the first incomplete one begins."""
        at, size, sinks, resets = 0, len(data), self._sinks, self._resets
        self._missing = 0
        match, take = (self.alike[0].match, self.alike[1]) if self.alike else (None, None)
        while at < size and resets == self._resets:
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
            end = find_end(data, at)
            if end < 0:
                return at
            words = data[at:end].split()
            if not words or words[0] not in (b"HMSG", b"MSG"):
                await self._control(data[at:end])
                at = end + 2
                continue
            reply, header, total = read_head(words)
            begin = end + 2
            end = begin + total
            if end + 2 > size:
                self._missing = end + 2 - size
                return at
            check_body(data, end)
            body = begin + header
            sink = sinks.get(words[2])
            if sink is not None:
                sink(words[1], reply, data[begin:body], data[body:end])
            else:
                await self._leave(words, reply, data[begin:body], data[body:end])
            at = end + 2
        return at

    async def _leave(self, words: list[bytes], reply: bytes, block: bytes, payload: bytes) -> None:
        """A message for a subscription of nats-py."""
        if not words[2].isdigit():
            raise nonsense("a message for no subscription")
        await self.nc._process_msg(int(words[2]), words[1], reply, payload, block or None)

    async def _control(self, line: bytes) -> None:
        """Everything the server sends beside messages."""
        kind, _, rest = line.partition(b" ")
        match kind.upper():
            case b"PING":
                await self.nc._process_ping()
            case b"PONG":
                await self.nc._process_pong()
            case b"+OK":
                pass
            case b"-ERR":
                await self._refusal(rest.strip().decode(errors="replace").lower())
            case b"INFO":
                await self.nc._process_info(read_info(rest))
            case _:
                raise nonsense("a line that is none of the protocol's")

    async def _refusal(self, text: str) -> None:
        if self.nc.is_connected and not any(known in text for known in _KNOWN_ERRORS):
            # nats-py ends for good on all other errors; a new connection may be welcome.
            await self.nc._process_op_err(nats.errors.Error(f"nats: {text}"))
        else:
            await self.nc._process_err(text)
