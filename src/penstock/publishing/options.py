"""How a publisher retries, and who it tells."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.callbacks import survive
from penstock.config import LONGEST, check_callable, check_duration, check_whole
from penstock.errors import InvalidArgumentError, PenstockError
from penstock.publishing.flight import Flight
from penstock.retrying import Persistence, always, is_retryable
from penstock.rules.backoff import Backoff, check_pauses


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishRetry:
    """When and how often a publish is attempted again.

    `attempts` counts the first. Between attempts the wait doubles from `backoff` to
    `maximum_backoff` seconds, with full jitter. `deadline`: no attempt begins later than this
    many seconds after the first. `retry_on` decides which faults are worth another attempt, by
    default those whose error says it is retryable.
    """

    attempts: int = 3
    backoff: float = 0.25
    maximum_backoff: float = 5.0
    deadline: float | None = None
    retry_on: Callable[[PenstockError], bool] = is_retryable

    def __post_init__(self) -> None:
        check_whole("attempts", self.attempts, 1)
        check_pauses("backoff", self.backoff, "maximum_backoff", self.maximum_backoff)
        if self.deadline is not None:
            check_duration("deadline", self.deadline, 0, LONGEST)
        check_callable("retry_on", self.retry_on, "a function of an error")

    def delay(
        self,
        attempts: int,
        elapsed: float,
        error: PenstockError,
        chance: Callable[[], float] = random.random,
    ) -> float | None:
        """Seconds to wait after `attempts` attempts and `elapsed` seconds; None: give up."""
        if not self._worth_it(error):
            return None
        persistence = Persistence(
            backoff=Backoff(initial=self.backoff, maximum=self.maximum_backoff),
            attempts=self.attempts,
            within=self.deadline,
            worth_it=always,
        )
        return persistence.pause(attempts, elapsed, error, chance)

    def _worth_it(self, error: PenstockError) -> bool:
        try:
            return bool(self.retry_on(error))
        except BaseException as mistake:
            survive(mistake, "retry_on of a publisher's retry")
            return False


def check_listener(listener: object) -> None:
    """Anything that can be told something will do."""
    names = [name for name in vars(PublisherListener) if not name.startswith("_")]
    told = any(callable(getattr(listener, name, None)) for name in names)
    if listener is not None and (isinstance(listener, type) or not told):
        raise InvalidArgumentError(
            f"listener must be a PublisherListener, with one of {', '.join(names)}, or None, "
            f"not {listener!r}"
        )


class PublisherListener:
    """Told what happens to flights. Override what you need, plain or async.

    Whatever a method raises is logged and changes nothing. Async methods run one after the
    other, in order.
    """

    def published(self, flight: Flight) -> Any:
        """It has left: it was sent to the broker for the first time."""

    def acked(self, flight: Flight) -> Any:
        """The broker has it."""

    def completed_exceptionally(self, flight: Flight) -> Any:
        """It was refused, or the connection failed: see `flight.error`."""

    def timeout(self, flight: Flight) -> Any:
        """No answer came within the wait timeout."""

    def held(self) -> Any:
        """The window is full: nothing more is published until it has drained enough."""

    def resumed(self) -> Any:
        """It has."""
