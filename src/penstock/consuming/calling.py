"""Calling a handler with what it asks for: body, message, attributes, dependencies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias

from penstock.consuming.bodies import decoder_of
from penstock.consuming.declaration import Function, Subscriber
from penstock.consuming.dependencies import Plan
from penstock.consuming.signature import Body, Needed, OfMessage, Signature, Source, is_async
from penstock.message import Message

Invoke: TypeAlias = Callable[[Message], Any]
InvokeBatch: TypeAlias = Callable[[Sequence[Message], Sequence[Any]], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """A subscriber, what its function wants, and how to get it."""

    subscriber: Subscriber
    signature: Signature
    plan: Plan
    decode: Callable[[Message], Any]

    @property
    def waits(self) -> bool:
        """Calling it gives something to await."""
        function, blocking = self.subscriber.function, self.subscriber.blocking
        return is_async(function) or blocking or not self.plan.constant


def decoder_for(signature: Signature) -> Callable[[Message], Any]:
    body = signature.body
    return decoder_of(body.kind) if body is not None else lambda _: None


def bind_call(binding: Binding, executor: Executor | None) -> Invoke:
    """A message in, what the function returns out: a value, or an awaitable if it `waits`.

    Made once; what is not asked for costs nothing. The plan must be open.
    """
    function = _in_thread(binding.subscriber.function, executor)
    plan, signature = binding.plan, binding.signature
    if not plan.constant:
        return partial(_call_with_dependencies, function, binding)
    places = [_reader(source, binding) for source in signature.places]
    keywords = {name: _reader(source, binding) for name, source in signature.keywords.items()}
    if keywords:
        return lambda message: function(
            *[read(message) for read in places],
            **{name: read(message) for name, read in keywords.items()},
        )
    match places:
        case []:
            return lambda _: function()
        case [first]:
            return lambda message: function(first(message))
        case [first, second]:
            return lambda message: function(first(message), second(message))
    return lambda message: function(*[read(message) for read in places])


def bind_batch(binding: Binding, executor: Executor | None) -> InvokeBatch:
    """Messages and their bodies in, what the function returns out."""
    function = _in_thread(binding.subscriber.function, executor)
    plan, signature = binding.plan, binding.signature

    async def call(messages: Sequence[Message], bodies: Sequence[Any]) -> Any:
        async with AsyncExitStack() as stack:
            values = await plan.values(messages[0], stack)

            def given(source: Source) -> Any:
                if isinstance(source, Needed):
                    return values[source.kind]
                return list(bodies if isinstance(source, Body) else messages)

            result = function(
                *[given(source) for source in signature.places],
                **{name: given(source) for name, source in signature.keywords.items()},
            )
            return await result if isawaitable(result) else result

    return call


async def _call_with_dependencies(function: Function, binding: Binding, message: Message) -> Any:
    # Decoded first: nothing is opened for a body that cannot be read.
    body = binding.decode(message)
    async with AsyncExitStack() as stack:
        values = await binding.plan.values(message, stack)

        def given(source: Source) -> Any:
            match source:
                case Body():
                    return body
                case OfMessage(read):
                    return read(message)
                case Needed(kind):
                    return values[kind]

        signature = binding.signature
        result = function(
            *[given(source) for source in signature.places],
            **{name: given(source) for name, source in signature.keywords.items()},
        )
        return await result if isawaitable(result) else result


def _reader(source: Source, binding: Binding) -> Callable[[Message], Any]:
    match source:
        case Body():
            return binding.decode
        case OfMessage(read):
            return read
        case Needed(kind):
            value = binding.plan.value(kind)
            return lambda _: value


def _in_thread(function: Function, executor: Executor | None) -> Function:
    """A plain function that waits, as an async one. Its thread cannot be stopped: a call that was
    cancelled goes on unseen."""
    if executor is None:
        return function

    async def run(*places: Any, **keywords: Any) -> Any:
        work = partial(copy_context().run, partial(function, *places, **keywords))
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    return run
