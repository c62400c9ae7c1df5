"""The port: what a broker must do, and nothing that can be written once above it.

Three verbs move data, all in batches, each answered per message. An adapter does one thing per
call: it never retries, never decides how much to fetch and never hides a failure. What a broker
cannot do is said in its `Capabilities`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from penstock.clock import PreciseTime
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.message import (
    AckResponse,
    Delivery,
    Draft,
    PublishFault,
    Receipt,
    Record,
    Settlement,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a broker does by itself. Code and tests read these; nobody asks for its class."""

    durable: bool = False
    """What it acknowledged survives the end of its process."""
    ordering: bool = False
    """It hands over one message of an ordering key at a time."""
    filters: bool = False
    dead_letters: bool = False
    retry_policy: bool = False
    delayed_nack: bool = False
    sets_deadlines: bool = False
    """An extension lasts as long as asked; otherwise it renews the ack deadline as it is."""
    exactly_once: bool = False
    delivery_attempts: bool = False
    dedupe: bool = False
    expectations: bool = False
    ttl: bool = False
    outlives_topic: bool = False
    """A subscription hands over what it holds after its topic was deleted."""
    push: bool = False
    subjects: bool = False
    """Topics may store subjects of any name, and subscriptions see some of them."""
    work_queues: bool = False
    updates: bool = False
    """`Admin.update_topic` and `Admin.update_subscription` change what exists."""
    detaching: bool = False
    expiration: bool = False
    """Subscriptions that nobody uses are deleted after their `expires_after`."""
    seek: bool = False
    snapshots: bool = False
    replay: bool = False
    """It has a `log`."""
    backlog: bool = False
    """`Admin.describe_subscription` counts what is unsettled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicStatus:
    config: TopicConfig
    subscriptions: tuple[str, ...]
    published: int
    """Messages ever stored; also the last sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionStatus:
    config: SubscriptionConfig
    backlog: int
    """Messages not yet acked, on loan or not."""
    leased: int
    """Of those, how many are on loan to subscribers."""
    oldest_age: float
    """Seconds since the oldest of them was published; 0 when there is none."""
    topic_deleted: bool = field(default=False)
    detached: bool = field(default=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotStatus:
    topic: str
    expires: PreciseTime
    topic_deleted: bool = field(default=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What a broker holds for this user."""

    topics: int
    subscriptions: int
    memory_bytes: int
    storage_bytes: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The sequences a log holds, both ends included. Empty when `first > last`."""

    first: int
    last: int


class Admin(Protocol):
    """What operators do. Creating what exists or naming what does not is an error."""

    async def create_topic(self, config: TopicConfig) -> None: ...
    async def delete_topic(self, topic: str) -> None:
        """Its subscriptions stay, hand over what they hold, then fail."""

    async def update_topic(self, config: TopicConfig) -> None:
        """Make the topic of that name what `config` says. How it routes cannot be changed."""

    async def list_topics(self) -> Sequence[str]: ...
    async def describe_topic(self, topic: str) -> TopicStatus: ...
    async def create_subscription(self, config: SubscriptionConfig) -> None:
        """It sees what is published from now on."""

    async def update_subscription(self, config: SubscriptionConfig) -> None:
        """Make the subscription of that name what `config` says; what is on loan stays so.
        Topic, filter, ordering and push cannot be changed."""

    async def detach_subscription(self, subscription: str) -> None:
        """Take it from its topic for good: what it holds is dropped, and pulls fail."""

    async def delete_subscription(self, subscription: str) -> None: ...
    async def list_subscriptions(self, topic: str | None = None) -> Sequence[str]: ...
    async def usage(self) -> Usage:
        """`UnimplementedError` by a broker that does not tell."""
        ...

    async def describe_subscription(self, subscription: str) -> SubscriptionStatus: ...
    async def create_snapshot(self, snapshot: str, subscription: str) -> None:
        """Remember what the subscription has not acked. It expires seven days after the oldest
        message in it was published, and is refused when that is less than an hour away."""

    async def list_snapshots(self, topic: str | None = None) -> Sequence[str]: ...
    async def describe_snapshot(self, snapshot: str) -> SnapshotStatus: ...
    async def delete_snapshot(self, snapshot: str) -> None: ...
    async def seek(self, subscription: str, to: datetime | str) -> None:
        """Make messages from a time on, or those of a snapshot by name, deliverable again, and
        those before it acked. Open deliveries end: their ack ids are no longer valid."""


class Log(Protocol):
    """Replayable brokers: reading a topic by sequence, without a subscription."""

    async def extent(self, topic: str) -> Extent: ...
    def read(
        self, topic: str, first: int, last: int, filter: str = ""
    ) -> AsyncIterator[Sequence[Record]]:
        """What the log holds of `first` to `last` (included), in order, in batches.

        Sequences that are gone are left out; compare with `extent` to notice.
        """
        ...


class Broker(Protocol):
    """Moves messages. Every method may raise `PenstockError`; `retryable` says what is worth
    trying again, above the port."""

    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def admin(self) -> Admin: ...
    @property
    def log(self) -> Log | None:
        """None unless `capabilities.replay`."""
        ...

    async def publish(
        self, topic: str, drafts: Sequence[Draft]
    ) -> Sequence[Receipt | PublishFault]:
        """Store the drafts in order; one answer each, in the same order."""
        ...

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        """Take what is available, waiting up to `wait` seconds for the first message.

        At most `max_messages` of at most `max_bytes` together, but a single message larger than
        that is handed over alone. Cancelling it loses nothing.
        """
        ...

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        """Answer deliveries; one response each, in the same order."""
        ...

    async def ping(self) -> float:
        """Seconds of a round trip; raises when the broker cannot be reached."""
        ...

    async def aclose(self) -> None:
        """Release everything. Idempotent; waiting calls end with `ClosedError`."""
