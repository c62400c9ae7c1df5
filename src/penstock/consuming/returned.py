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
    names the function: the class `Reject`, an exception that was not raised, what has not run.
    """
    if isinstance(result, list | tuple):
        among = (one for one in result if _is_outcome(one))
        result = next(among, None)
    if isinstance(result, Retry | Reject):
        return result
    mistake = _mistake(result)
    if mistake is None:
        return None
    return InvalidArgumentError(f"{subscriber.where} returned {mistake}")


def _is_outcome(value: Any) -> bool:
    """Or its class, for which it was mistaken."""
    return issubclass(value if isinstance(value, type) else type(value), Retry | Reject)


def _mistake(value: Any) -> str | None:
    """What it is, and what to write instead."""
    if isinstance(value, type):
        if issubclass(value, Retry | Reject):
            return f'the class {value.__name__}; write `return {value.__name__}("why")`'
        if issubclass(value, BaseException):
            return f"the class {value.__name__}; write `raise {value.__name__}(…)`"
        return None
    if isinstance(value, BaseException):
        return f"a {type(value).__name__}; raise it"
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return "a generator, which has run nothing yet; return a list"
    if inspect.iscoroutine(value):
        value.close()  # Or Python says once more, and less clearly, that nobody awaited it.
        return "a coroutine that nobody awaits; write `return await …`"
    return None
