"""Receiving by `async for`: messages are fetched as they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from penstock.clock import Clock
from penstock.message import Message
from penstock.subscribing.stream import MessageStream


class Iteration:
    """One `async for` over a stream.

    Leases run while a message waits to be asked for, so few are fetched ahead: as many as the
    loop has been seen to use within a small part of the ack deadline, one at first.

    `leave` ends it at once and without waiting: a loop that is left by `break` is cleaned up
    later, when the next loop may already have begun.
    """

    def __init__(self, stream: MessageStream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._news = asyncio.Event()
        self._ahead = 1
        self._left = False

    async def messages(self) -> AsyncIterator[Message]:
        if self._left:
            return
        stream = self._stream
        stream.hand_out(self._ahead, self._news.set)
        stream.resume()
        try:
            while not self._left:
                fetched = self._clock.monotonic()
                while (message := stream.take_waiting()) is not None:
                    yield message
                self._adapt(self._clock.monotonic() - fetched)
                if stream.ended:
                    break
                self._news.clear()
                await self._news.wait()
        finally:
            self.leave()
        if stream.failure is not None:
            raise stream.failure

    def leave(self) -> None:
        """Pause the stream and give back what was fetched and not yet seen."""
        if self._left:
            return
        self._left = True
        if self._stream.active:
            self._stream.pause()
            self._stream.give_back_waiting()
        self._stream.hand_out(None, None)
        self._news.set()

    def _adapt(self, took: float) -> None:
        """What was fetched has been used up after `took` seconds."""
        deadline = self._stream.ack_deadline
        if took < deadline / 20:
            self._ahead = min(2 * self._ahead, self._stream.max_messages)
        elif took > deadline / 5:
            self._ahead = max(1, self._ahead // 2)
        if not self._left:
            self._stream.hand_out(self._ahead, self._news.set)
