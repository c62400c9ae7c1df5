"""The port: what a broker must do, and nothing that can be written once above it.

Three verbs move data, all in batches, each answered per message. An adapter does one thing per
call: it never retries, never decides how much to fetch and never hides a failure. What a broker
cannot do is said in its `Capabilities`. What each method promises is written where it is declared,
and `penstock.testing.conformance` tests it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from penstock.clock import PreciseTime
from penstock.columns import Columns
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.errors import UnimplementedError
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
    """What a broker does by itself. Code and tests read these; nobody asks for its class.

    What a broker does not claim is not asked of it: `penstock.capabilities` refuses it before, or
    the client does it instead. docs/brokers.md says which, flag by flag.
    """

    durable: bool = False
    """A receipt outlives the broker's process."""
    ordering: bool = False
    """It hands over one message of an ordering key at a time."""
    filters: bool = False
    """A subscription sees only what its `filter` lets through."""
    dead_letters: bool = False
    """What failed too often moves to the topic of the subscription's policy."""
    least_delivery_attempts: int = 1
    """The smallest `max_delivery_attempts` that a dead-letter policy may have."""
    retry_policy: bool = False
    """Every redelivery waits as the subscription's policy says."""
    delayed_nack: bool = False
    """A nack may say after how many seconds the message comes back."""
    sets_deadlines: bool = False
    """An extension lasts as long as asked; otherwise it renews the ack deadline as it is."""
    exactly_once: bool = False
    """Of a message only the latest ack id is valid, and its success is final."""
    delivery_attempts: bool = False
    """Every delivery says which attempt it is; otherwise it may say 0, for not counted."""
    counts_releases: bool = False
    """Deliveries that were released count as attempts; it is a `ReleaseCounts`, which tells."""
    dedupe: bool = False
    """Within the topic's duplicate window a message id is stored once."""
    expectations: bool = False
    """It stores a draft with an `Expect` only if that is met."""
    ttl: bool = False
    """A draft may say after how many seconds it is to be forgotten."""
    replicas: bool = False
    """Topics and subscriptions can be kept by several servers at once."""
    outlives_topic: bool = False
    """A subscription hands over what it holds after its topic was deleted."""
    push: bool = False
    """It can be told to send messages to a subject instead of being asked for them."""
    subjects: bool = False
    """Topics may store subjects of any name, and subscriptions see some of them."""
    work_queues: bool = False
    """A topic may keep each message until one subscription has acked it, and no longer."""
    updates: bool = False
    """`Admin.update_topic` and `Admin.update_subscription` change what exists."""
    filter_updates: bool = False
    """Of a subscription that exists, the filter can be changed as well."""
    detaching: bool = False
    """A subscription can be taken from its topic."""
    expiration: bool = False
    """Subscriptions that nobody uses are deleted after their `expires_after`."""
    seek: bool = False
    """A subscription can go to a moment: what is before it is acked, what is after it is not."""
    snapshots: bool = False
    """What a subscription has not acked can be remembered, and returned to."""
    replay: bool = False
    """It has a `log`."""
    backlog: bool = False
    """`Admin.describe_subscription` counts what is unsettled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicStatus:
    config: TopicConfig
    subscriptions: tuple[str, ...]
    published: int
    """Messages ever stored; also the last sequence. -1: the broker does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unsettled:
    """What a subscription has not seen acked."""

    messages: int
    """On loan or not."""
    leased: int
    """Of those, how many are on loan to subscribers. On JetStream also those that came back and
    were not lent again: its server does not tell them apart."""
    oldest_age: float
    """Seconds since the oldest of them was published; 0 when there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionStatus:
    """`backlog`, `leased` and `oldest_age` are those of `unsettled`. Without it, because the broker
    does not claim `backlog`, reading them is an `UnimplementedError`."""

    config: SubscriptionConfig
    unsettled: Unsettled | None = None
    topic_deleted: bool = False
    detached: bool = False

    @property
    def backlog(self) -> int:
        return self._counted.messages

    @property
    def leased(self) -> int:
        return self._counted.leased

    @property
    def oldest_age(self) -> float:
        return self._counted.oldest_age

    @property
    def _counted(self) -> Unsettled:
        if self.unsettled is None:
            raise UnimplementedError(
                f"What is unsettled in subscription {self.config.name!r} is not known: its broker "
                "does not claim 'backlog'; look whether `unsettled` is None first"
            )
        return self.unsettled


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotStatus:
    topic: str
    expires: PreciseTime
    topic_deleted: bool = False


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
    """What operators do. Every method waits for the broker's answer, and any may run beside any
    other call.

    Creating what exists raises `AlreadyExistsError`, naming what does not `NotFoundError`; nothing
    is changed then. A call that was cancelled or raised something `retryable` may have been carried
    out or not; making it again tells.
    """

    async def create_topic(self, config: TopicConfig) -> None:
        """From its return on, drafts can be published to it."""

    async def delete_topic(self, topic: str) -> None:
        """With what its log holds. Its subscriptions hand over what they hold and then raise
        `TopicNotFoundError`, if the broker claims `outlives_topic`; else they are gone with it."""

    async def list_topics(self) -> Sequence[str]:
        """All names, sorted."""
        ...

    async def update_topic(self, config: TopicConfig) -> None:
        """Make the topic of that name what `config` says. How it routes cannot be changed.

        `UnimplementedError` unless the broker claims `updates`, as is `update_subscription`.
        """

    async def describe_topic(self, topic: str) -> TopicStatus: ...
    async def create_subscription(self, config: SubscriptionConfig) -> None:
        """It sees what is published from its return on, and nothing from before the call.

        A topic or dead-letter topic that is not there raises `TopicNotFoundError`, a filter that
        does not parse `FilterError`; nothing is created then.
        """

    async def delete_subscription(self, subscription: str) -> None:
        """With its backlog. Pulls that wait on it end with `SubscriptionNotFoundError`."""

    async def list_subscriptions(self, topic: str | None = None) -> Sequence[str]:
        """All names, or those of a topic, sorted. One that several topics have is listed as often,
        as `SubscriptionName`s."""
        ...

    async def describe_subscription(self, subscription: str) -> SubscriptionStatus:
        """What was settled a moment ago may still be counted."""
        ...

    async def update_subscription(self, config: SubscriptionConfig) -> None:
        """Make the subscription of that name what `config` says; what is on loan stays so, and
        what waits is kept. Topic, ordering, subjects and push cannot be changed.

        A filter can where the broker claims `filter_updates`: what is handed over from now on
        follows the new one. What waits and does not match it counts as acked; what the old one
        kept out stays out, but for what the broker had not yet come to.
        """

    async def detach_subscription(self, subscription: str) -> None:
        """Take it from its topic for good: what it holds is dropped, and pulls fail.

        `UnimplementedError` unless the broker claims `detaching`.
        """

    async def usage(self) -> Usage:
        """What it holds for this user. `UnimplementedError` by a broker that does not tell."""
        ...

    async def create_snapshot(self, snapshot: str, subscription: str) -> None:
        """Remember what the subscription has not acked. It expires seven days after the oldest
        message in it was published, and is refused when that is less than an hour away.

        `UnimplementedError` unless the broker claims `snapshots`, as is `delete_snapshot`.
        """

    async def list_snapshots(self, topic: str | None = None) -> Sequence[str]: ...
    async def describe_snapshot(self, snapshot: str) -> SnapshotStatus: ...
    async def delete_snapshot(self, snapshot: str) -> None: ...
    async def seek(self, subscription: str, to: datetime | str) -> None:
        """Make messages from a time on, or those of a snapshot by name, deliverable again, and
        those before it acked. Open deliveries end: their ack ids are no longer valid.

        `UnimplementedError` unless the broker claims `seek`, or `snapshots` for a name.
        """


class Log(Protocol):
    """Replayable brokers: reading a topic by sequence, without a subscription. Nothing is changed,
    so reads may be many at a time, cancelled and repeated at will.

    A topic that is not there raises `TopicNotFoundError`.
    """

    async def extent(self, topic: str) -> Extent:
        """What the log holds now: every receipt given before the call is in it."""
        ...

    def read(
        self, topic: str, first: int, last: int, filter: str = ""
    ) -> AsyncIterator[Sequence[Record]]:
        """What the log holds of `first` to `last` (included), in order, in batches that are not
        empty. It does not wait for what is not yet there.

        Sequences that are gone are left out; compare with `extent` to notice. When it raises, what
        it gave is right, and reading goes on behind the last record it gave. It may be left
        half-way.
        """
        ...


class ReleaseCounts(Protocol):
    """What a broker that claims `counts_releases` is besides: whoever gives a message up for its
    attempts finds out how many of them somebody saw."""

    async def note_releases(self, subscription: str) -> None:
        """Remember what this connection releases of the subscription from now on, for all others.
        Again does nothing."""

    async def attempt(self, subscription: str, ack_id: str) -> int:
        """Which attempt this delivery is, not counting those before it that were released."""
        ...


class Broker(Protocol):
    """Moves messages. One connection, for the tasks of one event loop; not for threads.

    Side by side: any method may be called while others wait, also the same one for the same topic
    or subscription. None waits for another.

    Failure: what is true of one message is answered for that message; what is true of the whole
    call is raised, as a `PenstockError` whose `retryable` says whether the same call may succeed
    later. Nothing is tried again below the port.

    Claims: it is not asked for what its capabilities do not claim.

    Names: a subscription is named by text. A `SubscriptionName` also says in which topic to look,
    for brokers that may have several of one name; so do those that `Admin` is given.

    Nothing: a call with no drafts, no settlements or room for no messages is answered with nothing,
    and does not look whether its topic or subscription is there.

    The end: calls that wait when `aclose` is called, and all made after it, end with `ClosedError`.
    """

    @property
    def name(self) -> str:
        """What to call it in a sentence: "the … broker"."""
        ...

    project: str
    """Whose names go without `project/`; dead letters say which project they came from."""

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
        """Store the drafts in order; one answer each, in the same order.

        Waits until the fate of each is known or the broker has taken too long to tell. A draft that
        is refused, or of which it is not known whether it is stored, is answered by a fault and
        keeps none of the others back. Drafts of calls side by side may be stored in between each
        other.

        Raises when nothing was stored for a reason that is not a draft's own: `TopicNotFoundError`;
        the broker cannot be reached; it is closed.

        Cancelled: its drafts may be stored or not, those of other calls are not touched.
        """
        ...

    async def pull(
        self, subscription: str, *, max_messages: int, max_bytes: int, wait: float
    ) -> Sequence[Delivery]:
        """Take what is available, waiting up to `wait` seconds for the first message.

        Returns as soon as it has a message, and with none when the time is up; at once when `wait`
        is not above 0. At most `max_messages` of at most `max_bytes` together, but a single message
        larger than that is handed over alone, also when `max_bytes` is not above 0. Of pulls side
        by side, each message goes to one.

        Raises `SubscriptionNotFoundError`, or `TopicNotFoundError` when the topic was deleted and
        nothing is left, also while it waits.

        Cancelled or raising, it loses nothing: what it had taken comes back, at the latest when the
        ack deadline has passed.
        """
        ...

    async def settle(
        self, subscription: str, settlements: Sequence[Settlement]
    ) -> Sequence[AckResponse]:
        """Answer deliveries; one response each, in the same order.

        Waits until the broker has taken them, and with exactly-once delivery until it has confirmed
        them. An ack id that is not, or no longer, that of a delivery on loan has no effect: INVALID
        with exactly-once delivery, SUCCESS without. So has one that an earlier settlement of the
        same call has ended: the first wins.

        Raises `SubscriptionNotFoundError` when it knows that there is none. Acks that need no
        confirmation may go unanswered: then SUCCESS says that they were sent.

        Cancelled or raising, some may have taken effect. Making the call again is safe: without
        exactly-once delivery the answers are the same, with it INVALID may mean "before".
        """
        ...

    async def ping(self) -> float:
        """Seconds of a round trip; `UnavailableError` when the broker does not answer in time."""
        ...

    async def aclose(self) -> None:
        """Release everything, waiting no longer than the broker's own time-outs. Idempotent.

        What is on loan comes back to others when its ack deadline has passed, or before. A publish
        that waits may have been stored: it raises, or answers `ClosedError` for each draft of which
        nothing is known.
        """


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
