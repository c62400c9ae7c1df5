"""Push consumers: the server sends, and what came waits here until it is pulled.

How much may wait is the server's to bound: it sends no more than `max_ack_pending` messages that
are not settled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.brokers.nats.aio.pulling import Pulling
from penstock.brokers.nats.aio.wire import Wire
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.brokers.nats.protocol.headers import IDLE, stalled_of, status_of
from penstock.brokers.nats.protocol.records import Raw
from penstock.brokers.nats.protocol.requests import publish_operation


class PushInbox:
    """What the server pushed for one subscription."""

    def __init__(self, wire: Wire, pulling: Pulling) -> None:
        self._wire = wire
        self._pulling = pulling
        self._waiting: deque[Raw] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._unsubscribe: Callable[[], None] | None = None

    def open(self, consumer: Consumer) -> None:
        push = consumer.config.push
        if push is not None:
            self._unsubscribe = self._wire.subscribe(push.subject, self._receive, queue=push.group)

    async def pull(self, max_messages: int, max_bytes: int, wait: float) -> list[Raw]:
        """As `Pulling.pull`, from what is here; nothing at once when it was closed."""
        if not self._waiting and wait > 0 and not self._ended:
            self._news.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._news.wait()
            except TimeoutError:
                return []
        self._wire.check_open()
        taken: list[Raw] = []
        while self._waiting and len(taken) < max_messages:
            max_bytes -= len(self._waiting[0][3])
            if max_bytes < 0 and taken:
                break
            taken.append(self._waiting.popleft())
        return taken

    def close(self) -> None:
        """Give back what nobody pulled; who waits for more is told."""
        self._ended = True
        self._news.set()
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._pulling.give_back([raw[1] for raw in self._waiting])
        self._waiting.clear()

    def _receive(self, subject: bytes, reply: bytes, block: bytes, payload: bytes) -> None:
        if reply.startswith(b"$JS.ACK."):
            if self._ended:
                self._pulling.give_back([reply])  # It was sent before the server knew.
                return
            self._waiting.append((subject, reply, block, payload))
            self._news.set()
            return
        # A consumer with flow control sends no more until it is told that we have got so far.
        answer_to = (reply or stalled_of(block)) if status_of(block)[0] == IDLE else b""
        if answer_to:
            self._wire.post([publish_operation(answer_to, b"", b"", b"")])
