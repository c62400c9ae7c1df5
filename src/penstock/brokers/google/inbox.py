"""What one subscription was sent and nobody has asked for yet: streams under a port that asks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock.brokers.google.connection import Connection
from penstock.brokers.google.lending import Arrivals, Lending
from penstock.brokers.google.records import read_record
from penstock.brokers.google.streaming import Stream
from penstock.clock import Clock
from penstock.config import SubscriptionConfig
from penstock.errors import PenstockError
from penstock.message import Delivery

Extend = Callable[[Sequence[str], int], Awaitable[object]]


class Inbox:
    """Google is asked for as much as callers can take: what they hold, and what they ask for now.

    The rest stays with Google, for others. While messages wait here they are kept ours; when
    nobody comes for them they are given back, and the streams are closed. A stream's window cannot
    be changed, so when callers ask for more another one is opened beside it.
    """

    def __init__(
        self,
        connection: Connection,
        resource: str,
        config: SubscriptionConfig,
        clock: Clock,
        extend: Extend,
    ) -> None:
        self.config = config
        self.lending = Lending()
        self._connection = connection
        self._resource = resource
        self._clock = clock
        self._extend = extend
        self._deadline = min(max(round(config.ack_deadline), 10), 600)
        self._arrivals = Arrivals() if config.message_ordering else None
        self._waiting: deque[tuple[float, Any]] = deque()
        self._asked = 0
        self._asked_bytes = 0
        self._asked_at = clock.monotonic()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._streams: dict[asyncio.Task[PenstockError], Stream] = {}
        self._tending: asyncio.Task[None] | None = None
        self._error: PenstockError | None = None
        self._closed_by: PenstockError | None = None

    async def pull(self, max_messages: int, max_bytes: int, wait: float) -> list[Delivery]:
        until = self._clock.monotonic() + wait
        self._asked += max_messages
        self._asked_bytes += max_bytes
        try:
            while True:
                taken = self._take(max_messages, max_bytes)
                remaining = until - self._clock.monotonic()
                if taken:
                    return taken
                if self._closed_by is not None:
                    raise self._closed_by
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                if remaining <= 0 < wait:
                    return taken
                self._open_enough()
                if remaining <= 0:
                    # Whoever asks again and again must not keep what comes from coming.
                    await asyncio.sleep(0)
                    return self._take(max_messages, max_bytes)
                await self._next_news(remaining)
        finally:
            self._asked -= max_messages
            self._asked_bytes -= max_bytes
            self._asked_at = self._clock.monotonic()

    async def close(self, error: PenstockError) -> None:
        """Give back what waits, so that others need not wait for it; pulls that wait raise."""
        self._closed_by = error
        self._news.set()
        tasks = [*self._streams, *([self._tending] if self._tending is not None else [])]
        self._streams.clear()
        self._tending = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._give_back()

    # From the streams.

    def _open_enough(self) -> None:
        """Streams whose windows hold what callers have and want."""
        wanted = self._asked + self.lending.count(self._clock.monotonic())
        wanted_bytes = self._asked_bytes + self.lending.bytes
        window = sum(stream.window for stream in self._streams.values())
        window_bytes = sum(stream.window_bytes for stream in self._streams.values())
        if wanted <= window and wanted_bytes <= window_bytes:
            return
        # At least as much again: a caller that asks for ever more gets few streams, not many.
        stream = Stream(
            self._connection,
            self._resource,
            ack_deadline=self._deadline,
            window=max(wanted - window, window),
            window_bytes=max(wanted_bytes - window_bytes, window_bytes),
            deliver=self._arrived,
        )
        loop = asyncio.get_running_loop()
        # Owned here: they end in `close`, or by themselves.
        task = loop.create_task(stream.run())
        self._streams[task] = stream
        task.add_done_callback(self._ended)
        if self._tending is None:
            self._tending = loop.create_task(self._tend())

    async def _arrived(self, received: Sequence[Any]) -> None:
        now = self._clock.monotonic()
        self._waiting.extend((now, one) for one in received)
        self._news.set()
        # Google keeps to the windows; an emulator may not.
        while len(self._waiting) > 2 * sum(s.window for s in self._streams.values()):
            self._room.clear()
            await self._room.wait()

    def _ended(self, task: asyncio.Task[PenstockError]) -> None:
        if self._streams.pop(task, None) is not None and not task.cancelled():
            self._error = task.result()
            self._news.set()

    async def _next_news(self, seconds: float) -> None:
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    # To the callers.

    def _take(self, max_messages: int, max_bytes: int) -> list[Delivery]:
        now = self._clock.monotonic()
        taken: list[Delivery] = []
        left = max_bytes
        while self._waiting and len(taken) < max_messages:
            since, received = self._waiting[0]
            remaining = since + self._deadline - now
            if remaining > 0:
                delivery = self._delivery(received, remaining)
                left -= delivery.record.size
                if left < 0 and taken:
                    break
                taken.append(delivery)
            self._waiting.popleft()
        if taken:
            self.lending.begin(taken, now)
            self._room.set()
        return taken

    def _delivery(self, received: Any, remaining: float) -> Delivery:
        message = received.message
        number = 0
        if self._arrivals is not None and message.ordering_key:
            number = self._arrivals.number(message.message_id)
        return Delivery(
            read_record(message, self.config.topic, number),
            received.ack_id,
            received.delivery_attempt,
            remaining,
        )

    # Nobody asks for a while.

    async def _tend(self) -> None:
        """Keep what waits ours, as long as somebody may come for it."""
        while True:
            await asyncio.sleep(self._deadline / 3)
            now = self._clock.monotonic()
            if not self._asked and now - self._asked_at > self._deadline:
                streams, self._streams = self._streams, {}
                self._tending = None
                for task in streams:
                    task.cancel()
                await self._give_back()
                return
            await self._renew(now)

    async def _renew(self, now: float) -> None:
        old = [received for since, received in self._waiting if now - since > self._deadline / 4]
        if not old:
            return
        # What cannot be renewed expires, and is left out when its turn comes.
        with suppress(PenstockError):
            await self._extend([received.ack_id for received in old], self._deadline)
            renewed = {id(received) for received in old}
            self._waiting = deque(
                (now if id(received) in renewed else since, received)
                for since, received in self._waiting
            )

    async def _give_back(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        if waiting:
            with suppress(PenstockError):
                await self._extend([received.ack_id for _, received in waiting], 0)
