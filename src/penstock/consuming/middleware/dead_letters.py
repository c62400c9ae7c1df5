"""Errors that never get better."""

from __future__ import annotations

from typing import Any

from penstock.consuming.declaration import Middleware
from penstock.consuming.middleware.chain import Call, Next
from penstock.consuming.middleware.retry import Errors, classifier
from penstock.outcomes import Reject


def dead_letters(on: Errors, *, reason: str | None = None) -> Middleware:
    """Messages whose handlers raise one of `on` go to the dead letters at once, without further
    attempts. The reason is the name of the error unless given."""
    hopeless = classifier(on)

    async def buried(call: Call, next: Next) -> Any:
        try:
            return await next(call)
        except Exception as error:
            if hopeless(error):
                raise Reject(reason or type(error).__name__) from error
            raise

    return buried
