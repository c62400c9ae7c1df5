"""Receiving by `async for`: messages are fetched as they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Self

from penstock.message import Message
from penstock.subscribing.stream import MessageStream


class Iteration:
    """One `async for` over a stream.

    Leases run while a message waits to be asked for, so few are fetched ahead: as many as the
    loop has been seen to use within a small part of the ack deadline, one at first.

    A loop that is left by `break` drops it, and then it ends at once: a generator alone would be
    cleaned up later, when the stream may already have been resumed, or the next loop begun.
    """

    def __init__(self, stream: MessageStream) -> None:
        self._stream = stream
        self._deliveries = stream.deliveries
        self._clock = stream.source.clock
        self._ahead = 1
        self._left = False

    def messages(self) -> Loop:
        return Loop(self, self._messages())

    async def _messages(self) -> AsyncGenerator[Message]:
        if self._left:
            return
        stream, deliveries = self._stream, self._deliveries
        deliveries.fetch_ahead(self._ahead)
        stream.resume()
        try:
            while not self._left:
                fetched, used = self._clock.monotonic(), False
                while (message := deliveries.take()) is not None:
                    used = True
                    yield message
                if used:
                    self._adapt(self._clock.monotonic() - fetched)
                if stream.ended or self._left:
                    break
                await deliveries.change()
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
            self._deliveries.give_back_waiting()
        self._deliveries.fetch_ahead(None)

    def _adapt(self, took: float) -> None:
        """What was fetched has been used up after `took` seconds."""
        deadline = self._deliveries.ack_deadline
        if took < deadline / 20:
            self._ahead = min(2 * self._ahead, self._deliveries.max_delivered)
        elif took > deadline / 5:
            self._ahead = max(1, self._ahead // 2)
        if not self._left:
            self._deliveries.fetch_ahead(self._ahead)


class Loop:
    """What `async for` holds while it runs."""

    def __init__(self, iteration: Iteration, messages: AsyncGenerator[Message]) -> None:
        self._iteration = iteration
        self._messages = messages
        self._event_loop = asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Message]:
        return self._messages.__anext__()

    async def aclose(self) -> None:
        await self._messages.aclose()

    def __del__(self) -> None:
        # Elsewhere, as at the end of the program, there is nobody left to be told.
        if asyncio._get_running_loop() is self._event_loop:
            self._iteration.leave()
