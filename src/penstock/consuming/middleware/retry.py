"""Trying again at once, here, before the broker has to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.config import check_kind, check_whole
from penstock.consuming.declaration import Middleware
from penstock.consuming.middleware.chain import Call, Next
from penstock.errors import InvalidArgumentError
from penstock.outcomes import Reject, Retry
from penstock.retrying import Persistence, is_retryable
from penstock.retrying import retry as try_again
from penstock.rules.backoff import Backoff

Errors: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
"""Which errors: a class, several, or a function that says."""

_PASSING = (ConnectionError, TimeoutError)
_BACKOFF = Backoff(initial=0.1, maximum=2.0)


def passing(error: Exception) -> bool:
    """Trouble with the network, and what says of itself that it is worth another attempt."""
    return is_retryable(error) or isinstance(error, _PASSING)


def retry(*, attempts: int = 3, on: Errors = passing, backoff: Backoff = _BACKOFF) -> Middleware:
    """Call the handler up to so many times for a delivery, with pauses by `backoff`, when it raises
    one of `on`. Its message stays ours meanwhile, and counts one delivery."""
    check_whole("attempts", attempts, 1)
    check_kind("backoff", backoff, Backoff, "a Backoff")
    persistence = Persistence(backoff=backoff, attempts=attempts, worth_it=classifier(on))

    async def tried_again(call: Call, next: Next) -> Any:
        return await try_again(lambda: next(call), persistence)

    return tried_again


def classifier(errors: Errors) -> Callable[[Exception], bool]:
    """Says whether an error is one of these. What a handler decided never is."""
    if isinstance(errors, type | tuple):
        try:
            isinstance(None, errors)
        except TypeError:
            raise InvalidArgumentError(f"Errors are exception classes, not {errors!r}") from None
        return lambda error: isinstance(error, errors) and not isinstance(error, Retry | Reject)
    if not callable(errors):
        raise InvalidArgumentError(
            f"Errors are exception classes or a function of an exception, not {errors!r}"
        )
    return lambda error: not isinstance(error, Retry | Reject) and bool(errors(error))
