"""What the server sends, handed to whom it is for, however it is cut."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TypeAlias

import nats.aio.client
import nats.errors
from nats.protocol.parser import Parser

from penstock.brokers.nats.protocol.frames import (
    END,
    MAX_LINE,
    check_body,
    find_end,
    nonsense,
    read_head,
    read_info,
)

Sink: TypeAlias = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with subject, reply, header block and payload; empty where there is none."""

RunSink: TypeAlias = Callable[[list[bytes]], None]
"""Called with a run of messages that look alike: the groups of the pattern, one message's after
the other's."""

_MESSAGES = (b"HMSG", b"MSG")
# Bytes that are many answers.
_MANY_ALIKE = 1024
_NEVER = re.compile(rb"(?!)")
_KNOWN_ERRORS = ("stale connection", "permissions violation")


class LeanParser(Parser):
    """Reads the wire protocol in place of nats-py's own parser.

    Messages of registered subscriptions go to their sinks; all else is nats-py's, and awaited.
    Raises `UnavailableError`, which ends the connection, for what no server says.
    """

    def __init__(self, client: nats.aio.client.Client, sinks: dict[bytes, Sink]) -> None:
        self._sinks = sinks
        self.alike: tuple[re.Pattern[bytes], RunSink] | None = None
        self.on_reset: Callable[[], None] = lambda: None
        self._resets = 0
        self._answers: list[bytes] = []
        self._tells_soon = False
        self._afterwards: list[Callable[[], None]] = []
        self.afterwards: Callable[[Callable[[], None]], None] = self._afterwards.append
        """For sinks: call something, on no task, when all that came is read: in this turn of the
        event loop, or in the next if something else came with it."""
        super().__init__(client)

    def reset(self) -> None:
        """Another connection begins: what was left of the last one is nobody's."""
        super().reset()
        self._resets += 1
        self.on_reset()
        self._rest = b""
        self._chunks: list[bytes] = []
        self.missing = 0
        """Bytes that are still to come of a message whose beginning has."""

    def feed(self, data: bytes) -> bytes:
        """Hand over messages of ours until something else comes: returns that and all behind it,
        which is for `parse`."""
        try:
            if self._rest or self.missing:
                data = self._with_rest(data)
                if not data:
                    return b""
            resets = self._resets
            at, is_other = self._hand_over(data, 0)
            if resets != self._resets:
                return b""
            self._rest = b"" if is_other else data[at:]
            return data[at:] if is_other else b""
        finally:
            # Who waits for a message goes before who waits for an answer, also if the message comes
            # a moment later: it is read in the next turn of the loop, before those who are told in
            # it go on.
            if self._answers and not self._tells_soon:
                self._tells_soon = True
                asyncio.get_running_loop().call_soon(self.tell)
            if self._afterwards:
                self._act()

    def _act(self) -> None:
        # Not one after the other from a list: an act may be the last, if it ends the program.
        while self._afterwards:
            self._afterwards.pop(0)()

    async def parse(self, data: bytes = b"") -> None:
        try:
            await self._parse(data)
        finally:
            if self._afterwards:
                # Not on this task: whoever is called here could cancel it, and nobody would read.
                asyncio.get_running_loop().call_soon(self._act)

    async def _parse(self, data: bytes) -> None:
        data = self._with_rest(data)
        at, resets = 0, self._resets
        while data:
            try:
                at, is_other = self._hand_over(data, at)
            finally:
                self.tell()
            if is_other and resets == self._resets:
                at = await self._leave(data, at)
            if not is_other or resets != self._resets:
                break
        if resets == self._resets and data:
            self._rest = data[at:]

    def _with_rest(self, data: bytes) -> bytes:
        """What there is to parse; nothing while a large payload is not complete."""
        if self.missing > 0:
            # Its parts are gathered and joined once.
            self._chunks.append(data)
            self.missing -= len(data)
            if self.missing > 0:
                return b""
            data = b"".join((self._rest, *self._chunks))
            self._chunks.clear()
        elif self._rest:
            data = self._rest + data
        self.missing = 0
        return data

    def tell(self) -> None:
        """Hand over the answers that have come."""
        self._tells_soon = False
        run, self._answers = self._answers, []
        if run and self.alike is not None:
            self.alike[1](run)

    def _hand_over(self, data: bytes, at: int) -> tuple[int, bool]:
        """Give messages of registered subscriptions to their sinks, and keep those that look alike
        for `tell`. Returns where it came to what is not complete, or, and then True, to a complete
        operation that is not ours."""
        alike = _NEVER if self.alike is None else self.alike[0]
        size, sinks, resets, match = len(data), self._sinks, self._resets, alike.match
        tried = False
        while at < size and resets == self._resets:
            found = match(data, at)
            if found is not None and not tried:
                # Once, and only where there is hope, or what is mixed would be searched for ever.
                tried = True
                if size - at >= _MANY_ALIKE and b"HMSG" not in data:
                    at = _split(data, at, alike, self._answers)
                    found = match(data, at)
            while found is not None:
                self._answers += found.groups()
                at = found.end()
                found = match(data, at)
            # `find_end` and `check_body` are called only where they have something to say.
            end = data.find(END, at, at + MAX_LINE)
            if end < 0:
                find_end(data, at)
                return at, False
            words = data[at:end].split()
            if not words or words[0] not in _MESSAGES:
                return at, True
            reply, header, total = read_head(words)
            begin = end + 2
            end = begin + total
            if end + 2 > size:
                self.missing = end + 2 - size
                return at, False
            if data[end : end + 2] != END:
                check_body(data, end)
            body = begin + header
            sink = sinks.get(words[2])
            if sink is None:
                return at, True
            sink(words[1], reply, data[begin:body], data[body:end])
            at = end + 2
        return at, False

    async def _leave(self, data: bytes, at: int) -> int:
        """Leave a complete operation to nats-py; returns where the next begins."""
        end = find_end(data, at)
        words = data[at:end].split()
        if not words or words[0] not in (b"HMSG", b"MSG"):
            await self._control(data[at:end])
            return end + 2
        if not words[2].isdigit():
            raise nonsense("a message for no subscription")
        reply, header, total = read_head(words)
        begin = end + 2
        body, end = begin + header, begin + total
        block, payload = data[begin:body], data[body:end]
        await self.nc._process_msg(int(words[2]), words[1], reply, payload, block or None)
        return end + 2

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
                await self._refusal(rest.strip().decode(errors="replace"))
            case b"INFO":
                await self.nc._process_info(read_info(rest))
            case _:
                raise nonsense("a line that is none of the protocol's")

    async def _refusal(self, words: str) -> None:
        # Subjects keep their case: two may differ in nothing else.
        kind, quote, subjects = words.partition('"')
        text = kind.lower() + quote + subjects
        if self.nc.is_connected and not any(known in text for known in _KNOWN_ERRORS):
            # nats-py ends for good on all other errors; a new connection may be welcome.
            await self.nc._process_op_err(nats.errors.Error(f"nats: {text}"))
        else:
            await self.nc._process_err(text)


def _split(data: bytes, at: int, alike: re.Pattern[bytes], run: list[bytes]) -> int:
    """Add the groups of messages that look alike and follow each other from `at` on, if nothing
    but the rest of another comes between or behind them; returns where they end.

    It takes half the time of finding them one by one.
    """
    parts = alike.split(data[at:])
    rest = parts.pop()
    between = slice(None, None, 1 + alike.groups)
    if any(parts[between]):
        return at
    del parts[between]
    run += parts
    return len(data) - len(rest)
