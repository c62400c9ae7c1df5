"""What every middleware is: an async function around the next one, the handler innermost.

    async def loud(call: Call, next: Next) -> Any:
        print("before", call.message.id)
        result = await next(call)
        print("after", result)
        return result

What it raises, or `Retry` and `Reject`, decides about the message; what it returns is done. The
chain is put together once, when the app starts.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import CodeType
from typing import Any, TypeAlias

from msgspec import Struct

from penstock.callbacks import underlying, where
from penstock.consuming.declaration import Middleware, Subscriber
from penstock.errors import InvalidArgumentError
from penstock.message import Message


class Call(Struct, eq=False):
    """One call of a handler on its way through the middleware.

    `message`: the first of `messages`, which are one, or those of a batch. A middleware may take
    some out, which acks them unless it says in `failures` what is to become of them. `raised`: what
    the handler raised the last time it was called.
    """

    subscriber: Subscriber
    message: Message
    messages: list[Message]
    failures: dict[Message, Exception] = {}
    raised: Exception | None = None

    @property
    def topic(self) -> str:
        return self.subscriber.topic

    @property
    def subscription(self) -> str:
        return self.subscriber.subscription

    @property
    def handler(self) -> str:
        """The name of the function."""
        return self.subscriber.name


Next: TypeAlias = Callable[[Call], Awaitable[Any]]


def compose(middleware: Sequence[Middleware], endpoint: Next) -> Next:
    """The first outermost, the endpoint innermost."""
    chain = endpoint
    for one in reversed(middleware):
        chain = _around(one, chain)
    return chain


def _around(middleware: Middleware, inner: Next) -> Next:
    return lambda call: middleware(call, inner)


def check_middleware(middleware: Middleware) -> None:
    """`InvalidArgumentError` for what could not work, or would drop every message."""
    if not callable(middleware):
        raise InvalidArgumentError(
            f"A middleware must be an async function, not a {type(middleware).__name__}"
        )
    function = underlying(middleware)
    if not inspect.iscoroutinefunction(function):
        hint = ""
        if inspect.isfunction(function) and function.__name__ in _FACTORIES:
            hint = f"; call it: `{function.__name__}(…)`"
        raise InvalidArgumentError(
            f"Middleware {where(middleware)} is not async; write "
            f"`async def {function.__name__}(call, next): return await next(call)`{hint}"
        )
    names = list(inspect.signature(middleware).parameters)
    if len(names) != 2:
        raise InvalidArgumentError(
            f"Middleware {where(middleware)} takes {len(names)} arguments; it is called with two: "
            "`(call, next)`"
        )
    if names[1] not in _used_names(function.__code__):
        raise InvalidArgumentError(
            f"Middleware {where(middleware)} never uses {names[1]!r}: no handler would be called "
            f"and every message acked; write `return await {names[1]}(call)`"
        )


_FACTORIES = (
    "circuit_breaker", "dead_letters", "deduplicate", "inbox", "logs", "metrics", "rate_limit",
    "retry", "timeout", "tracing",
)  # fmt: skip


def _used_names(code: CodeType) -> set[str]:
    return {str(name) for name in _loaded(code)}


def _loaded(code: CodeType) -> Iterator[Any]:
    for step in dis.get_instructions(code):
        if step.opname.startswith("LOAD_"):
            yield step.argval
        if isinstance(step.argval, CodeType):
            yield from _loaded(step.argval)
