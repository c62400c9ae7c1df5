"""What came of a call, in a word for logs and metrics."""

from __future__ import annotations

from penstock.outcomes import Reject, Retry


def outcome_of(error: BaseException) -> str:
    """What a handler decided, or the name of what it raised."""
    match error:
        case Retry():
            return "retry"
        case Reject():
            return "reject"
    return type(error).__name__
