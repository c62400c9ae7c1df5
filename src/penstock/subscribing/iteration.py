"""Receiving by `async for`: a listener that queues, and a way to leave at any point."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from penstock.message import Message
from penstock.subscribing.stream import MessageStream


class Listenable(Protocol):
    """The subscription, as an iteration sees it."""

    @property
    def is_open(self) -> bool: ...
    @property
    def stream(self) -> MessageStream | None: ...
    def on(self, event: str, listener: Callable[..., Any]) -> Any: ...
    def off(self, event: str, listener: Callable[..., Any]) -> None: ...
    def open(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Iteration:
    """One `async for` over a subscription.

    `leave` ends it at once and without waiting: a loop that is left by `break` is cleaned up
    later, when the next loop may already have begun.
    """

    def __init__(self, subscription: Listenable) -> None:
        self._subscription = subscription
        self._waiting: deque[Message] = deque()
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self._ended = False
        self._left = False
        self._listeners: dict[str, Callable[..., Any]] = {
            "message": self._receive,
            "error": self._remember,
            "close": self._end,
        }

    async def messages(self) -> AsyncIterator[Message]:
        subscription = self._subscription
        for event, listener in self._listeners.items():
            subscription.on(event, listener)
        try:
            subscription.open()
            subscription.resume()
            while True:
                while self._waiting:
                    message = self._waiting.popleft()
                    if subscription.stream is not None and subscription.stream.holds(message):
                        yield message
                if self._ended:
                    break
                self._news.clear()
                await self._news.wait()
        finally:
            self.leave()
        if self._failure is not None and not getattr(self._failure, "retryable", True):
            raise self._failure

    def leave(self) -> None:
        """Pause the subscription and give back what was fetched and not yet seen."""
        if self._left:
            return
        self._left = True
        for event, listener in self._listeners.items():
            self._subscription.off(event, listener)
        if self._subscription.is_open:
            self._subscription.pause()
            for message in self._waiting:
                message.nack()
        self._waiting.clear()
        self._end()

    def _receive(self, message: Message) -> None:
        self._waiting.append(message)
        self._news.set()

    def _remember(self, error: BaseException) -> None:
        self._failure = error

    def _end(self) -> None:
        self._ended = True
        self._news.set()
