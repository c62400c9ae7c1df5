"""How a stage is consumed: what a user may set of it."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, TypedDict

from msgspec import Meta, Struct

from penstock.config import RetryPolicy, check_name
from penstock.rules.filters import parse_filter

Whole: TypeAlias = Annotated[int, Meta(ge=1, le=10_000)]
Duration: TypeAlias = Annotated[float, Meta(ge=0, le=600)]
Invalid: TypeAlias = Literal["dead-letter", "retry"]


class StageSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one stage is consumed.

    `filter`: which messages, in Pub/Sub's syntax; by default those at the stage it consumes.
    `ack_deadline` is renewed every `extension_interval` seconds, give or take the share
    `extension_jitter`, while a handler works. `time_limit`: seconds a handler may take.
    `drain`: seconds that handlers get to finish when a worker is stopped.
    `dead_letter_topic`: where messages go that failed `max_attempts` times; by default shared by
    all stages of a topic. `invalid`: what to do with a message that does not decode.
    """

    subscription: str
    filter: str
    concurrency: Whole = 4
    ack_deadline: Annotated[float, Meta(ge=10, le=600)] = 60.0
    extension_interval: Annotated[float, Meta(gt=0, le=300)] = 20.0
    extension_jitter: Annotated[float, Meta(ge=0, le=0.5)] = 0.1
    time_limit: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    drain: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    minimum_backoff: Duration = 1.0
    maximum_backoff: Duration = 60.0
    dead_letter_topic: str | None = None
    invalid: Invalid = "dead-letter"

    def __post_init__(self) -> None:
        check_name("Subscription", self.subscription)
        parse_filter(self.filter)
        if self.dead_letter_topic is not None:
            check_name("Dead-letter topic", self.dead_letter_topic)
        if self.maximum_backoff < self.minimum_backoff:
            raise ValueError("maximum_backoff is less than minimum_backoff")
        if self.extension_interval >= self.ack_deadline:
            raise ValueError("extension_interval must be shorter than ack_deadline")

    @property
    def retry_policy(self) -> RetryPolicy:
        return RetryPolicy(
            minimum_backoff=self.minimum_backoff, maximum_backoff=self.maximum_backoff
        )

    def dead_letters(self, topic: str) -> str:
        """Where dead letters of a topic go."""
        return self.dead_letter_topic or f"{topic}-dead"


class StageDefaults(TypedDict, total=False):
    """What a declared stage may say of its settings; the names are those of `StageSettings`."""

    concurrency: int
    ack_deadline: float
    extension_interval: float
    extension_jitter: float
    time_limit: float
    drain: float
    max_attempts: int
    minimum_backoff: float
    maximum_backoff: float
    dead_letter_topic: str
    invalid: Invalid
