"""How a subscriber behaves, as values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypedDict

from penstock.config import DeadLetterPolicy, PushDelivery, RetryPolicy, check_whole
from penstock.errors import InvalidArgumentError
from penstock.message import check_ack_deadline
from penstock.rules.backoff import Backoff
from penstock.rules.window import FlowControl
from penstock.subscribing.leases import LeaseExtension


@dataclass(frozen=True, kw_only=True, slots=True)
class Streaming:
    """`max_streams`: pulls that run side by side. `high_water_mark`: messages each may fetch
    beyond the flow-control window, to wait in the client until there is room."""

    max_streams: int = 5
    high_water_mark: int = 0

    def __post_init__(self) -> None:
        check_whole("max_streams", self.max_streams, 1)
        check_whole("high_water_mark", self.high_water_mark, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriberOptions:
    """What a `MessageStream` does; all of it can be changed while it runs.

    `ack_deadline`: seconds a message is ours; None takes what the broker grants.
    `lease_extension`: keep messages ours while handlers work; None lets them expire.
    `backoff`: how long to wait after a pull that failed.
    `threads`: how many threads run handlers that are not async; 0: they run on the event loop.
    With threads leases are extended while handlers work, as by `LeaseExtension()`.
    """

    flow_control: FlowControl = field(default_factory=FlowControl)
    ack_deadline: float | None = None
    message_ordering: bool = False
    streaming: Streaming = field(default_factory=Streaming)
    lease_extension: LeaseExtension | None = None
    backoff: Backoff = field(default_factory=Backoff)
    threads: int = 0

    def __post_init__(self) -> None:
        if self.ack_deadline is not None and check_ack_deadline(self.ack_deadline) == 0:
            raise InvalidArgumentError(
                "Ack deadline must be between 0 and 600 seconds, and above 0 for a stream"
            )
        check_whole("threads", self.threads, 0)
        for option, kind in (
            ("flow_control", FlowControl),
            ("message_ordering", bool),
            ("streaming", Streaming),
            ("lease_extension", LeaseExtension | None),
            ("backoff", Backoff),
        ):
            value = getattr(self, option)
            if not isinstance(value, kind):
                raise InvalidArgumentError(f"{option} cannot be a {type(value).__name__}")


class StreamOptions(TypedDict, total=False):
    """The fields of `SubscriberOptions`, as keywords."""

    flow_control: FlowControl
    ack_deadline: float | None
    message_ordering: bool
    streaming: Streaming
    lease_extension: LeaseExtension | None
    backoff: Backoff
    threads: int


class SubscriptionOptions(StreamOptions, total=False):
    """The same, and the fields of `SubscriptionConfig`, which `create` tells the broker."""

    enable_exactly_once_delivery: bool
    filter: str
    dead_letter_policy: DeadLetterPolicy | None
    retry_policy: RetryPolicy | None
    retain_acked_messages: bool
    message_retention: float
    expires_after: float | None
    subjects: tuple[str, ...]
    push: PushDelivery | None
    replicas: int | None


def check_options(whose: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse names that are not known, and say which might have been meant."""
    unknown = sorted(set(given).difference(known))
    if unknown:
        meant = [match for name in unknown for match in get_close_matches(name, known, 1)]
        hint = f"did you mean {', '.join(meant)}? " if meant else ""
        raise InvalidArgumentError(
            f"{whose} has no option {', '.join(unknown)}; {hint}It has {', '.join(sorted(known))}"
        )
