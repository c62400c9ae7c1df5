"""From a message to its answer: decode, call, publish what comes of it, ack. Put together once.

A handler without middleware, results or things to be made for each message is called with next to
nothing around it; what is used is paid for, by who uses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from inspect import isawaitable
from typing import Any, TypeAlias

from penstock.callbacks import survive
from penstock.consuming.answering import Answering
from penstock.consuming.calling import Binding, Invoke, bind_batch, bind_call
from penstock.consuming.middleware.chain import Call, Next, compose
from penstock.consuming.results import Results
from penstock.consuming.returned import failure_in
from penstock.errors import ClosedError, InvalidArgumentError
from penstock.message import Message
from penstock.outcomes import Reject, Retry

_log = logging.getLogger("penstock.app")

Handle: TypeAlias = Callable[[Message], Any]
HandleBatch: TypeAlias = Callable[[list[Message]], Awaitable[None]]


def build_handler(
    binding: Binding, answering: Answering, results: Results | None, executor: Executor | None
) -> Handle:
    """What a subscription calls with each message."""
    invoke = bind_call(binding, executor)
    middleware = binding.subscriber.middleware
    if middleware or results is not None:
        endpoint = _endpoint(binding, invoke, results)
        return _through(binding, compose(middleware, endpoint), answering)
    return _waiting(invoke, answering) if binding.waits else _plain(invoke, answering)


def build_batch_handler(
    binding: Binding, answering: Answering, results: Results | None, executor: Executor | None
) -> HandleBatch:
    """What is called with each batch; every message in it is answered."""
    chain = compose(binding.subscriber.middleware, _batch_endpoint(binding, results, executor))

    async def handle(messages: list[Message]) -> None:
        wanted = []
        for message in messages:
            try:
                dealt = answering.arrived(message)
                if not (dealt if isinstance(dealt, bool) else await dealt):
                    wanted.append(message)
            except BaseException as error:
                _come_back(message, error)
        if wanted:
            await _answer_all(wanted, binding, chain, answering)

    return handle


def _plain(invoke: Invoke, answering: Answering) -> Handle:
    def handle(message: Message, looked_at: bool = False) -> Any:
        delivery = message._delivery
        if (delivery.delivery_attempt > 1 or delivery.record.attributes) and not looked_at:
            dealt = answering.arrived(message)
            if dealt is not False:
                return None if dealt is True else look_closer(message, dealt)
        try:
            result = invoke(message)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return answering.failed(message, error)
        if result is None:
            message.ack()
            return None
        return _finish(message, result, answering)

    async def look_closer(message: Message, dealt: Awaitable[bool]) -> None:
        if not await dealt:
            left = handle(message, looked_at=True)
            if left is not None:
                await left

    return handle


def _finish(message: Message, result: Any, answering: Answering) -> Any:
    """A plain function returned something: usually for nobody."""
    if isawaitable(result):  # It was an async function after all, in a plain wrapper.
        return _awaited(message, result, answering)
    failure = failure_in(result, answering.subscriber)
    if failure is not None:
        return answering.failed(message, failure)
    message.ack()
    return None


async def _awaited(message: Message, work: Awaitable[Any], answering: Answering) -> None:
    failure: BaseException | None
    try:
        failure = failure_in(await work, answering.subscriber)
    except BaseException as error:
        failure = _failure(error)
    await _answer(message, failure, answering)


def _waiting(invoke: Invoke, answering: Answering) -> Handle:
    async def handle(message: Message) -> None:
        delivery = message._delivery
        if delivery.delivery_attempt > 1 or delivery.record.attributes:
            dealt = answering.arrived(message)
            if dealt is not False and (dealt is True or await dealt):
                return
        try:
            result = await invoke(message)
        except BaseException as error:
            await _answer(message, _failure(error), answering)
            return
        if result is None:
            message.ack()
        else:
            await _answer(message, failure_in(result, answering.subscriber), answering)

    return handle


def _through(binding: Binding, chain: Next, answering: Answering) -> Handle:
    async def handle(message: Message) -> None:
        dealt = answering.arrived(message)
        if dealt is not False and (dealt is True or await dealt):
            return
        call = Call(binding.subscriber, message, [message])
        failure: BaseException | None
        try:
            failure = failure_in(await chain(call), binding.subscriber)
        except BaseException as error:
            failure = _failure(error)
        else:
            _warn_if_swallowed(call)
            if call.failures:
                failure = call.failures.get(message, failure)
        await _answer(message, failure, answering)

    return handle


def _failure(error: BaseException) -> BaseException:
    """A failure of the handler; raised again when it is none: the program is to end, or the task
    of the handler was cancelled or thrown away."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        raise error
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
    return error


def _warn_if_swallowed(call: Call) -> None:
    """Catching is deciding, but whoever only meant to look must find out."""
    if call.raised is not None:
        _log.warning(
            "A middleware of handler %s caught %s and returned: the message is acked; raise it "
            "again unless that is meant",
            call.handler,
            type(call.raised).__name__,
        )


async def _answer(message: Message, failure: BaseException | None, answering: Answering) -> None:
    if failure is not None:
        left = answering.failed(message, failure)
        if left is not None:
            await left
    else:
        message.ack()


def _endpoint(binding: Binding, invoke: Invoke, results: Results | None) -> Next:
    async def endpoint(call: Call) -> Any:
        message = call.message
        call.raised = None
        try:
            result = invoke(message)
            if isawaitable(result):
                result = await result
            failure = failure_in(result, binding.subscriber)
            if failure is not None:
                # Raised, so that no middleware loses it by returning something else.
                raise failure
            if results is not None:
                await results.publish(message, result)
        except Exception as error:
            call.raised = error
            raise
        return result

    return endpoint


# Batches.


def _batch_endpoint(binding: Binding, results: Results | None, executor: Executor | None) -> Next:
    invoke = bind_batch(binding, executor)

    async def endpoint(call: Call) -> Any:
        call.raised = None
        for message in call.messages:  # It may be tried again, here and now.
            call.failures.pop(message, None)
        messages, bodies = _decoded(call, binding.decode)
        if not messages:
            return None
        try:
            result = await invoke(messages, bodies)
            if isinstance(result, Retry | Reject):
                raise result
            done = _done(call, messages, _one_each(result, messages, binding))
            if results is not None:
                await results.publish_each(done)
        except Exception as error:
            call.raised = error
            raise
        return result

    return endpoint


def _decoded(call: Call, decode: Callable[[Message], Any]) -> tuple[list[Message], list[Any]]:
    """The messages that can be read, and their bodies; the others have failed."""
    messages, bodies = [], []
    for message in call.messages:
        try:
            bodies.append(decode(message))
        except Reject as error:
            call.failures[message] = error
        else:
            messages.append(message)
    return messages, bodies


def _done(
    call: Call, messages: Sequence[Message], each: Sequence[Any]
) -> list[tuple[Message, Any]]:
    """The messages that are done, and what came of them; the others have failed."""
    done = []
    for message, one in zip(messages, each, strict=True):
        failure = failure_in(one, call.subscriber)
        if failure is not None:
            call.failures[message] = failure
        else:
            done.append((message, one))
    return done


def _one_each(result: Any, messages: Sequence[Message], binding: Binding) -> Sequence[Any]:
    if result is None:
        return [None] * len(messages)
    if not isinstance(result, list) or len(result) != len(messages):
        shown = f"{len(result)} results" if isinstance(result, list) else type(result).__name__
        raise InvalidArgumentError(
            f"{binding.subscriber.where} returned {shown} for a batch of {len(messages)}; return "
            "None, or a list with one result for each body, in their order"
        )
    return result


async def _answer_all(
    messages: list[Message], binding: Binding, chain: Next, answering: Answering
) -> None:
    call = Call(binding.subscriber, messages[0], list(messages))
    failure: BaseException | None = None
    try:
        await chain(call)
    except BaseException as error:
        failure = _failure(error)
    else:
        _warn_if_swallowed(call)
    asked = set(call.messages)
    for message in messages:
        raised = call.failures.get(message) or (failure if message in asked else None)
        try:
            await _answer(message, raised, answering)
        except BaseException as error:
            _come_back(message, error)


def _come_back(message: Message, error: BaseException) -> None:
    """It could not be answered; the others of its batch must be, unless all of it has ended."""
    if isinstance(error, ClosedError):
        raise error
    survive(_failure(error), f"Answering for message {message.id!r}")
    message.nack()
