"""How a subscriber behaves, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.config import check_whole
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
    """

    flow_control: FlowControl = field(default_factory=FlowControl)
    ack_deadline: float | None = None
    message_ordering: bool = False
    streaming: Streaming = field(default_factory=Streaming)
    lease_extension: LeaseExtension | None = None
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.ack_deadline is not None and check_ack_deadline(self.ack_deadline) == 0:
            raise InvalidArgumentError(
                "Ack deadline must be between 0 and 600 seconds, and above 0 for a stream"
            )
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
