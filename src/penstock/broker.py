"""The port: what a broker must do, and nothing that can be written once above it.

Three verbs move data, all in batches, each answered per message. An adapter does one thing per
call: it never retries, never decides how much to fetch and never hides a failure. What a broker
cannot do is said in its `Capabilities`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from penstock.columns import Columns
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


@dataclass(frozen=True, slots=True)
class Extent:
    """The sequences a log holds, both ends included. Empty when `first > last`."""

    first: int
    last: int
    identity: str = ""
    """Which topic of this name it is: another one when it was deleted and created again. Empty
    where the broker cannot say."""
    mean_bytes: float = 0.0
    """What a message takes on average, as stored: a forecast. 0 where the broker cannot say."""
    is_queue: bool = False
    """Messages are here to be taken away: who has dealt with them purges them."""
    is_compacted: bool = False
    """Later messages replace earlier ones, so what is missing need not be lost."""

    @property
    def end(self) -> int:
        """The next sequence that will be stored."""
        return self.last + 1


class Admin(Protocol):
    """What operators do. Creating what exists or naming what does not is an error."""

    async def create_topic(self, config: TopicConfig) -> None: ...
    async def delete_topic(self, topic: str) -> None:
        """Its subscriptions stay, hand over what they hold, then fail."""

    async def list_topics(self) -> Sequence[str]: ...
    async def describe_topic(self, topic: str) -> TopicStatus: ...
    async def create_subscription(self, config: SubscriptionConfig) -> None:
        """It sees what is published from now on."""

    async def delete_subscription(self, subscription: str) -> None: ...
    async def list_subscriptions(self, topic: str | None = None) -> Sequence[str]: ...
    async def describe_subscription(self, subscription: str) -> SubscriptionStatus: ...
    async def create_snapshot(self, snapshot: str, subscription: str) -> None:
        """Remember what the subscription has not acked; expires after seven days."""

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


class Mark(NamedTuple):
    """A small value that is replaced as a whole. `version` says which one it is."""

    data: bytes
    version: int


class RangeLog(Protocol):
    """A log for readers that have a process or a thread to themselves: it blocks, and what it reads
    comes in columns. Messages are read as they are stored; no subscription is touched.

    One thread uses it at a time. It connects when it is first used, so opening one never fails, and
    it connects again with the next call after one that raised: an error leaves it usable and leaves
    nothing half done. Like a broker it tries nothing again; every method may be called again after
    an error that is `retryable`. Every method raises `TopicNotFoundError` for a topic that is not
    there, `UnavailableError` when the broker cannot be reached or goes away, and
    `DeadlineExceededError` when it does not answer in the time its address allows.
    """

    def extent(self, topic: str) -> Extent:
        """What the topic holds now, as far as the broker can say."""
        ...

    def first_since(self, topic: str, moment_us: int) -> int | None:
        """The first sequence stored at or after a moment, in microseconds since the epoch; None
        when there is none yet."""
        ...

    def read(
        self, topic: str, first: int, last: int, filter: str = "", *, headers: bool = False
    ) -> Iterator[Columns]:
        """What the log holds of `first` to `last` (included) and `filter` lets through, in order
        and never empty-handed: each batch has a message.

        Sequences that are gone are left out, as in `Log.read`. `headers` fills `Columns.headers`.
        The iterator reads ahead no more than a batch. When it raises, what it has given is right,
        and reading goes on behind the last sequence it gave. It may be left half-way; another call
        may be made only once it has ended or was left.
        """
        ...

    def purge(self, topic: str, before: int) -> None:
        """Forget everything below a sequence. Doing it again changes nothing."""
        ...

    def mark(self, topic: str, name: str) -> Mark | None:
        """The mark of this name, read where it was written: never an older one than what a
        `set_mark` has returned for. None when there is none.

        `topic` holds marks and nothing else; it comes into being with the first of them.
        """
        ...

    def set_mark(self, topic: str, name: str, data: bytes, *, replaces: int) -> int:
        """Put a mark in the place of version `replaces` (0: of none) and return its version.

        `FailedPreconditionError` when another version is there. That may be this very one, stored
        by a call whose answer was lost: `data` that no other writer would write tells.
        """
        ...

    def close(self) -> None:
        """Release everything. Idempotent; a call after it connects again."""


class ServerState(Protocol):
    """Where a server that runs is."""

    @property
    def pid(self) -> int: ...
    @property
    def port(self) -> int: ...


class Hold(Protocol):
    """Keeps a server running until it is closed or its process has ended, however that ends."""

    def close(self) -> None: ...


class OwnServer(Protocol):
    """A server that Penstock itself runs behind an address, for who operates it. It blocks."""

    def keep(self) -> ServerState:
        """Start it, or find it running, and let it run on when nobody uses it."""
        ...

    def stop(self) -> bool:
        """Stop it, whoever uses it; False when it was not running."""
        ...

    def state(self) -> ServerState | None:
        """The running server; None when it does not run."""
        ...

    def hold(self) -> Hold:
        """Start it, or find it running, and keep it running for as long as this process lives."""
        ...
