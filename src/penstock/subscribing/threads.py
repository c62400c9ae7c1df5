"""Blocking handlers: run in threads, and let them settle from there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import wraps
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar

from penstock.errors import ClosedError
from penstock.message import AckResponse, Message, Owner, Verb
from penstock.subscribing.daemon_threads import DaemonThreads
from penstock.subscribing.source import Handler

T = TypeVar("T")

# How often a thread that waits for the loop looks whether there still is one.
_LOOK_AGAIN = 1.0


class HandlerThreads:
    """Threads for handlers, and the owner of their messages: a verb that is called in a thread is
    carried out by the loop, and returns or raises when that is done."""

    def __init__(self, count: int, owner: Owner) -> None:
        self.count = count
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._executor = DaemonThreads(count, "penstock-handler")

    def close(self) -> None:
        """Start nothing more. A handler that runs cannot be ended; what it settles is refused."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def retire(self) -> None:
        """Others take over; what was begun here goes on."""
        self._executor.shutdown(wait=False)

    def wrap(self, handler: Handler) -> Handler:
        """The same handler, run in a thread unless it is async."""
        if iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
            return handler

        @wraps(handler, updated=())
        async def in_thread(message: Message) -> None:
            context = copy_context()
            work = await self._loop.run_in_executor(self._executor, context.run, handler, message)
            if isawaitable(work):
                await work

        return in_thread

    # The owner of messages.

    def settle(self, message: Message, verb: Verb, seconds: float | None) -> None:
        def settle() -> None:
            if not message._settled:
                self._owner.settle(message, verb, seconds)
                message._settled = True

        if threading.get_ident() == self._home:
            self._owner.settle(message, verb, seconds)
        else:
            self._on_the_loop(settle, message)

    def settle_with_response(
        self, message: Message, verb: Verb, *, first: bool
    ) -> Awaitable[AckResponse]:
        return self._owner.settle_with_response(message, verb, first=first)

    def modify_ack_deadline(self, message: Message, seconds: float) -> None:
        if threading.get_ident() == self._home:
            self._owner.modify_ack_deadline(message, seconds)
        else:
            self._on_the_loop(lambda: self._owner.modify_ack_deadline(message, seconds), message)

    def _on_the_loop(self, function: Callable[[], T], message: Message) -> T:
        done: Future[T] = Future()
        try:
            self._loop.call_soon_threadsafe(_fulfil, done, function)
        except RuntimeError:
            raise _gone(message) from None
        while True:
            try:
                return done.result(_LOOK_AGAIN)
            except TimeoutError:
                if self._loop.is_closed():
                    raise _gone(message) from None


def _fulfil(done: Future[Any], function: Callable[[], Any]) -> None:
    try:
        done.set_result(function())
    except Exception as error:
        done.set_exception(error)


def _gone(message: Message) -> ClosedError:
    return ClosedError(
        f"The event loop of message {message.id!r} has ended: it can no longer be settled and will "
        "be delivered again; close the subscription before the loop"
    )
