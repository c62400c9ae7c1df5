"""Requests with one answer each, on a subject of our own."""

from __future__ import annotations

import asyncio
import itertools
import secrets

from penstock.brokers.nats.aio.wire import Wire
from penstock.brokers.nats.protocol.errors import denied, no_answer
from penstock.brokers.nats.protocol.requests import publish_operation


class Asking:
    """One wildcard subscription for all answers. Cancelling a request leaves nothing behind."""

    def __init__(self, wire: Wire, inbox_prefix: str) -> None:
        self._wire = wire
        self._prefix = f"{inbox_prefix}.{secrets.token_hex(8)}".encode()
        self._at = len(self._prefix) + 1
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, tuple[str, asyncio.Future[tuple[bytes, bytes]]]] = {}
        wire.on_loss(self._on_loss)

    def open(self) -> None:
        self._wire.subscribe(f"{self._prefix.decode()}.*", self._on_answer)

    async def ask(self, subject: str, payload: bytes) -> tuple[bytes, bytes]:
        """Header block and payload of the answer."""
        await self._wire.until_connected()
        number = b"%d" % next(self._numbers)
        answer: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (subject, answer)
        reply = b"%b.%b" % (self._prefix, number)
        try:
            await self._wire.write([publish_operation(subject.encode(), reply, b"", payload)])
            async with asyncio.timeout(self._wire.timeout):
                return await answer
        except TimeoutError:
            raise no_answer(self._wire.timeout, subject) from None
        finally:
            del self._waiting[number]

    def refused(self, subject: str) -> bool:
        """The server takes nothing on this subject; True when it was one of ours, who are told."""
        found = [
            answer
            for asked, answer in self._waiting.values()
            if asked == subject and not answer.done()
        ]
        for answer in found:
            answer.set_exception(denied(subject))
        return bool(found)

    def _on_answer(self, subject: bytes, _reply: bytes, block: bytes, payload: bytes) -> None:
        _, answer = self._waiting.get(subject[self._at :], (None, None))
        if answer is not None and not answer.done():
            answer.set_result((block, payload))

    def _on_loss(self) -> None:
        error = self._wire.loss()
        for _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
