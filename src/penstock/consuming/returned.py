"""What a handler returned when it is not simply done: an outcome, or a mistake that must not pass
for done."""

from __future__ import annotations

import inspect
from typing import Any

from penstock.consuming.declaration import Subscriber
from penstock.errors import InvalidArgumentError
from penstock.outcomes import Reject, Retry


def failure_in(result: Any, subscriber: Subscriber) -> Exception | None:
    """Why the message is not done although its handler returned; None when it is.

    An outcome among several results is the outcome. What nobody can have meant is an error that
    names the function: the class `Reject`, an exception that was not raised, a coroutine that
    nobody awaits.
    """
    if isinstance(result, Retry | Reject):
        return result
    if isinstance(result, list | tuple):
        found = (failure_in(one, subscriber) for one in result if _may_fail(one))
        return next(filter(None, found), None)
    if not _may_fail(result):
        return None
    return InvalidArgumentError(f"{subscriber.where} returned {_mistake(result)}")


def _may_fail(value: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, BaseException)
    return isinstance(value, BaseException) or inspect.isawaitable(value) or _is_generator(value)


def _is_generator(value: Any) -> bool:
    return inspect.isgenerator(value) or inspect.isasyncgen(value)


def _mistake(value: Any) -> str:
    """What it is, and what to write instead."""
    if isinstance(value, type) and issubclass(value, Retry | Reject):
        return f'the class {value.__name__}; write `return {value.__name__}("why")`'
    if isinstance(value, type):
        return f"the class {value.__name__}; write `raise {value.__name__}(…)`"
    if isinstance(value, BaseException):
        return f"a {type(value).__name__}; raise it"
    if inspect.iscoroutine(value):
        value.close()  # Nobody will, and nobody has to be told so a second time.
    if _is_generator(value):
        return "a generator, which has run nothing yet; return a list"
    return f"a {type(value).__name__} that nobody awaits; write `return await …`"
