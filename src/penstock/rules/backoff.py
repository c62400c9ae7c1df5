"""How long to wait after a failure. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from penstock.config import LONGEST, check_duration
from penstock.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter: somewhere between 0 and a bound that doubles from
    `initial` to `maximum` seconds, so that many clients do not return together."""

    initial: float = 0.1
    maximum: float = 30.0

    def __post_init__(self) -> None:
        check_pauses("initial", self.initial, "maximum", self.maximum)

    def delay(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds to wait after the given number of failures in a row (1 for the first)."""
        bound: float = min(self.maximum, self.initial * 2.0 ** min(failures - 1, 64))
        return bound * chance()


def check_pauses(first: str, initial: float, last: str, maximum: float) -> None:
    """Two options that make a `Backoff`, by their names, or `InvalidArgumentError`."""
    check_duration(first, initial, 0, LONGEST)
    if not initial:
        raise InvalidArgumentError(f"{first} must be above 0 seconds, not {initial!r}")
    check_duration(last, maximum, initial, LONGEST)
