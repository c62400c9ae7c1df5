"""What a command ends with, for scripts; docs/commands.md has the same table."""

from __future__ import annotations

from penstock.errors import (
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    UnauthenticatedError,
)

NOT_ALL = 1
"""Something that was asked for is not so, was refused or failed; what was said tells what."""
WRONG_USE = 2
"""A word, an option or a setting is wrong: the same again will not do."""
UNAVAILABLE = 3
"""Somebody did not answer: the same may work later."""
NOT_THERE = 4
NOT_ALLOWED = 5


def code_of(error: PenstockError) -> int:
    if isinstance(error, InvalidArgumentError):
        return WRONG_USE
    if isinstance(error, NotFoundError):
        return NOT_THERE
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return NOT_ALLOWED
    return UNAVAILABLE if error.retryable else NOT_ALL
