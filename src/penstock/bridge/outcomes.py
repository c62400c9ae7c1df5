"""What becomes of an event: acked, brought back after a while, or given up. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from penstock.bridge.envelope import MalformedEventError
from penstock.bridge.settings import BridgeSettings
from penstock.config import check_duration
from penstock.errors import InvalidArgumentError
from penstock.outcomes import Reject, Retry

MALFORMED = "malformed_json"
UNRECOVERABLE = "unrecoverable"
EXHAUSTED = "max_deliver_exceeded"
# Deliveries beyond `max_deliver` that nobody answered: a handler that takes its process along, or
# events that were given back unseen, which the broker counts too. After so many it is the former.
UNANSWERED_AT_MOST = 10


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What a handler or a middleware may return to decide for itself: `ActionResult("ack")`, or
    `ActionResult("nak", delay=10)` to see the event again after so many seconds. With an inbox, a
    nak takes back what the handler wrote."""

    action: Literal["ack", "nak"]
    delay: float | None = None

    def __post_init__(self) -> None:
        if self.action not in ("ack", "nak"):
            raise InvalidArgumentError(f"An action is 'ack' or 'nak', not {self.action!r}")
        if self.delay is not None:
            check_duration("delay", self.delay, 0, 600)


class Recovery(Enum):
    """Whether an error may pass by itself."""

    RECOVERABLE = "recoverable"
    UNRECOVERABLE = "unrecoverable"


Classifier: TypeAlias = Callable[[Exception], Recovery]
# What says that the code or the event is wrong, and will be the next time as well.
_HOPELESS = (TypeError, ValueError, NameError, AttributeError)


def classify(error: Exception) -> Recovery:
    """By default: errors of code and arguments never pass, all others may."""
    hopeless = isinstance(error, _HOPELESS) and not getattr(error, "retryable", False)
    return Recovery.UNRECOVERABLE if hopeless else Recovery.RECOVERABLE


class Asked(Exception):  # noqa: N818 - what to do, not what went wrong
    """A handler asked to see its event again."""

    def __init__(self, delay: float | None) -> None:
        self.delay = delay
        super().__init__("asked to see it again")


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class Again:
    delay: float
    error: Exception


@dataclass(frozen=True, slots=True)
class GivenUp:
    """`event_id`: of one that was given up unseen, as far as it could be read."""

    reason: str
    error: Exception | None
    event_id: str = ""


Outcome: TypeAlias = Done | Again | GivenUp


def outcome_of(
    error: Exception, deliveries: int, settings: BridgeSettings, classifier: Classifier
) -> Outcome:
    """What becomes of an event that failed."""
    if isinstance(error, MalformedEventError):
        return GivenUp(MALFORMED, error)
    if isinstance(error, Reject):
        return GivenUp(UNRECOVERABLE, error)
    asked = isinstance(error, Retry | Asked)
    if not asked and classifier(error) is Recovery.UNRECOVERABLE:
        return GivenUp(UNRECOVERABLE, error)
    if deliveries >= settings.max_deliver:
        return GivenUp(EXHAUSTED, error)
    delay = (
        getattr(error, "after" if isinstance(error, Retry) else "delay", None) if asked else None
    )
    return Again(settings.delay(deliveries) if delay is None else min(delay, 600.0), error)


def unanswered(event_id: str, deliveries: int, settings: BridgeSettings) -> GivenUp | None:
    """What becomes of an event that was delivered so often and never answered, if that is it."""
    if deliveries <= settings.max_deliver + UNANSWERED_AT_MOST:
        return None
    return GivenUp(
        EXHAUSTED,
        RuntimeError(f"delivered {deliveries} times and never answered: does it end the process?"),
        event_id,
    )
