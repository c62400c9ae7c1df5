"""What became of a message or a job when it is not simply done: try again, or never again.

Handlers of an app and stages of jobs return these or raise them; both mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from penstock.errors import InvalidArgumentError


# Exceptions, so that code deep below a handler can decide; values, so that a handler may return
# them and tests compare them.
@dataclass(unsafe_hash=True)
class Retry(Exception):  # noqa: N818 - what to do, not what went wrong
    """It may succeed later: after so many seconds, or as the retry policy says."""

    reason: str
    after: float | None = None

    def __post_init__(self) -> None:
        if self.after is None:
            return
        if not isinstance(self.after, int | float) or not 0 <= self.after < inf:
            raise InvalidArgumentError(
                f"Retry {self.reason!r}: `after` must be seconds from now, not {self.after!r}; "
                "leave it out to wait as the retry policy says"
            )

    def __str__(self) -> str:
        return self.reason

    def __reduce__(self) -> tuple[Any, ...]:
        return Retry, (self.reason, self.after)


@dataclass(unsafe_hash=True)
class Reject(Exception):  # noqa: N818
    """It never will: to the dead letters with this reason. `gave_up`: for now at least, after the
    last attempt."""

    reason: str
    gave_up: bool = False

    def __str__(self) -> str:
        return self.reason

    def __reduce__(self) -> tuple[Any, ...]:
        return Reject, (self.reason, self.gave_up)
