"""Calling what users wrote: plain or async, with a connection or without."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from penstock.bridge.envelope import Event
from penstock.bridge.outcomes import ActionResult, Asked
from penstock.callbacks import where
from penstock.consuming.declaration import Middleware, Subscriber
from penstock.consuming.middleware.chain import Call, Next, compose
from penstock.errors import InvalidArgumentError
from penstock.outcomes import Reject, Retry
from penstock.subscribing.daemon_threads import DaemonThreads

# As many as are needed at a time: a consumer's concurrency, and those left behind by a deadline.
_THREADS = 1000


class EventCall(Call, eq=False, kw_only=True):
    """One event on its way through the middleware. `connection`: of the inbox's transaction, when
    the handler takes it."""

    event: Event
    connection: Any = None


class TransactionEnded(InvalidArgumentError):  # noqa: N818 - what was done, not what failed
    """A handler committed, rolled back or closed what is not its own, but of all the events that
    are processed together."""

    def __init__(self) -> None:
        super().__init__(
            "The handler ended the transaction of its connection, which also marks the event: "
            "leave commit, rollback and close to the bridge, and use connection.begin_nested() or "
            "a session on it instead"
        )


class EventHandler:
    """A function of `(event)` or `(event, connection)`.

    With a connection, an async function gets SQLAlchemy's `AsyncConnection` and a plain one the
    `Connection` below it. Without, a plain function runs in a thread, so that it may wait.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise InvalidArgumentError(
                f"A handler is a function of an event, not a {type(function).__name__}"
            )
        self.function = function
        self._is_async = inspect.iscoroutinefunction(
            function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
        )
        self.takes_connection = _takes_connection(function)
        # They keep no process from ending that was told to, whatever the function waits for.
        self._threads = DaemonThreads(_THREADS, "penstock-bridge")

    def close(self) -> None:
        """Threads end when what they do is done."""
        self._threads.shutdown(wait=False)

    async def __call__(self, event: Event, connection: Any) -> Any:
        if not self.takes_connection:
            if self._is_async:
                return await self.function(event)
            call = contextvars.copy_context().run
            result = await asyncio.wrap_future(self._threads.submit(call, self.function, event))
        elif self._is_async:
            return await self.function(event, connection)
        else:
            result = await connection.run_sync(lambda blocking: self.function(event, blocking))
        return await result if inspect.isawaitable(result) else result


def _takes_connection(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    required = [
        one
        for one in parameters
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) > 2 or not any(one.kind is not one.KEYWORD_ONLY for one in parameters):
        raise InvalidArgumentError(
            f"Handler {where(function)} takes {len(required)} arguments; it is called with "
            "`(event)`, or with `(event, connection)`"
        )
    return len(required) == 2


def build_chain(handler: EventHandler, middleware: Sequence[Middleware]) -> Next:
    """The first middleware outermost, the handler innermost. What it returns is None or raised."""
    return compose(middleware, _endpoint(handler))


def subscriber_of(handler: EventHandler, topic: str, subscription: str) -> Subscriber:
    """The handler, as middleware sees it."""
    return Subscriber(function=handler.function, topic=topic, subscription=subscription)


def _endpoint(handler: EventHandler) -> Next:
    async def endpoint(call: Call) -> Any:
        assert isinstance(call, EventCall)  # noqa: S101 - the consumer makes no others
        call.raised = None
        try:
            if call.connection is None:
                return settled(await handler(call.event, None))
            # What fails takes back what it wrote, and nothing of the events beside it.
            async with call.connection.begin_nested() as ours:
                result = settled(await handler(call.event, call.connection))
                if not ours.is_active:
                    raise TransactionEnded
                return result
        except Exception as error:
            call.raised = error
            raise

    return endpoint


def settled(result: Any) -> Any:
    """What a handler or middleware returned, unless it says that it is not done: then raised."""
    if isinstance(result, Retry | Reject):
        raise result
    if isinstance(result, ActionResult) and result.action == "nak":
        raise Asked(result.delay)
    return result
