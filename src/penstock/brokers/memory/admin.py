"""What operators do to the memory broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from penstock.broker import SnapshotStatus, SubscriptionStatus, TopicStatus, Usage
from penstock.brokers.memory.registry import Registry, Snapshot
from penstock.brokers.memory.subscription import SubscriptionState
from penstock.brokers.memory.topic import TopicState
from penstock.clock import NS, Clock, PreciseTime, to_ns
from penstock.config import DAY, SubscriptionConfig, TopicConfig, check_name
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    SnapshotNotFoundError,
    TopicNotFoundError,
    UnimplementedError,
)
from penstock.message import Record
from penstock.rules.wildcards import overlap

_SNAPSHOT_LIFETIME_NS = int(7 * DAY * NS)
_SNAPSHOT_LEAST_NS = 3600 * NS


class MemoryAdmin:
    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        new_subscription: Callable[[SubscriptionConfig], SubscriptionState],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._new_subscription = new_subscription

    async def create_topic(self, config: TopicConfig) -> None:
        self._registry.check_open()
        _check_new("Topic", config.name, self._registry.topics)
        self._registry.topics[config.name] = TopicState(config)

    async def delete_topic(self, topic: str) -> None:
        state = self._registry.topic(topic)
        del self._registry.topics[topic]
        for subscription in state.subscriptions:
            subscription.topic_deleted()

    async def update_topic(self, config: TopicConfig) -> None:
        state = self._registry.topic(config.name)
        state.config.check_change(config)
        state.config = config
        state.retention_changed()

    async def list_topics(self) -> Sequence[str]:
        self._registry.check_open()
        return sorted(self._registry.topics)

    async def describe_topic(self, topic: str) -> TopicStatus:
        state = self._registry.topic(topic)
        return TopicStatus(
            config=state.config,
            subscriptions=tuple(sorted(s.config.name for s in state.subscriptions)),
            published=state.last_sequence,
        )

    async def create_subscription(self, config: SubscriptionConfig) -> None:
        topic = self._registry.topic(config.topic)
        if config.push is not None:
            raise UnimplementedError(
                f"Subscription {config.name!r}: the memory broker does not push; leave push out"
            )
        _check_new("Subscription", config.name, self._registry.subscriptions)
        if config.dead_letter_policy is not None:
            self._registry.topic(config.dead_letter_policy.topic)
        if topic.config.work_queue:
            _check_apart(config, [other.config for other in topic.subscriptions])
        subscription = self._new_subscription(config)
        subscription.first_sequence = topic.last_sequence + 1
        self._registry.subscriptions[config.name] = subscription
        topic.subscriptions.append(subscription)
        topic.hand_to(subscription, self._clock.time_ns())
        topic.retention_changed()
        subscription.expire_with(self._drop_subscription)

    async def update_subscription(self, config: SubscriptionConfig) -> None:
        state = self._registry.subscription(config.name)
        state.config.check_change(config, filter_too=True)
        if config.dead_letter_policy is not None:
            self._registry.topic(config.dead_letter_policy.topic)
        state.reconfigure(config)
        topic = self._topic_of(state)
        if topic is not None:
            topic.retention_changed()

    async def detach_subscription(self, subscription: str) -> None:
        state = self._registry.subscription(subscription)
        self._take_from_topic(state)
        state.detach()

    async def delete_subscription(self, subscription: str) -> None:
        self._drop_subscription(self._registry.subscription(subscription))

    def _drop_subscription(self, state: SubscriptionState) -> None:
        del self._registry.subscriptions[state.config.name]
        self._take_from_topic(state)
        state.end()

    def _take_from_topic(self, state: SubscriptionState) -> None:
        topic = self._topic_of(state)
        if topic is not None:
            topic.subscriptions.remove(state)
            topic.take_back(state)
            topic.retention_changed()

    async def list_subscriptions(self, topic: str | None = None) -> Sequence[str]:
        if topic is None:
            self._registry.check_open()
            return sorted(self._registry.subscriptions)
        return (await self.describe_topic(topic)).subscriptions

    async def usage(self) -> Usage:
        states = self._registry.subscriptions.values()
        held = {id(record): len(record.data) for state in states for record in state.unacked()}
        return Usage(
            topics=len(self._registry.topics),
            subscriptions=len(self._registry.subscriptions),
            memory_bytes=sum(held.values()),
            storage_bytes=0,
        )

    async def describe_subscription(self, subscription: str) -> SubscriptionStatus:
        return self._registry.subscription(subscription).status()

    async def create_snapshot(self, snapshot: str, subscription: str) -> None:
        check_name("Snapshot", snapshot)
        state = self._registry.subscription(subscription)
        topic = self._topic_of(state)
        if topic is None:
            raise TopicNotFoundError(
                state.config.topic, "it was deleted; a snapshot needs the topic that follows it"
            )
        self._drop_expired_snapshots()
        _check_new("Snapshot", snapshot, self._registry.snapshots)
        unacked = tuple(state.unacked())
        now_ns = self._clock.time_ns()
        oldest_ns = unacked[0].publish_time_ns if unacked else now_ns
        expires_ns = oldest_ns + _SNAPSHOT_LIFETIME_NS
        if expires_ns - now_ns < _SNAPSHOT_LEAST_NS:
            raise FailedPreconditionError(
                f"Snapshot {snapshot!r} would expire within an hour, seven days after the oldest "
                f"message that subscription {subscription!r} has not acked; ack it first"
            )
        self._registry.snapshots[snapshot] = Snapshot(
            topic=topic,
            unacked=unacked,
            next_sequence=topic.keep_for_snapshot(snapshot, expires_ns),
            expires_ns=expires_ns,
        )

    async def list_snapshots(self, topic: str | None = None) -> Sequence[str]:
        self._registry.check_open()
        self._drop_expired_snapshots()
        wanted = self._registry.topic(topic) if topic is not None else None
        found = self._registry.snapshots.items()
        return sorted(name for name, s in found if wanted is None or s.topic is wanted)

    async def describe_snapshot(self, snapshot: str) -> SnapshotStatus:
        found = self._snapshot(snapshot)
        topic = found.topic.config.name
        return SnapshotStatus(
            topic=topic,
            expires=PreciseTime.from_ns(found.expires_ns),
            topic_deleted=self._registry.topics.get(topic) is not found.topic,
        )

    async def delete_snapshot(self, snapshot: str) -> None:
        self._snapshot(snapshot)
        self._drop_snapshot(snapshot)

    async def seek(self, subscription: str, to: datetime | str) -> None:
        state = self._registry.subscription(subscription)
        state.check_usable()
        if isinstance(to, str):
            self._seek_snapshot(state, to)
        elif isinstance(to, datetime) and to.tzinfo is not None:
            self._seek_time(state, to_ns(to))
        else:
            raise InvalidArgumentError(
                f"Subscription {subscription!r} seeks to a snapshot's name or an aware datetime "
                f"(with a time zone), not {to!r}"
            )

    def _seek_time(self, state: SubscriptionState, since_ns: int) -> None:
        now_ns = self._clock.time_ns()
        topic = self._topic_of(state)
        replayable = topic.replayable(state, now_ns) if topic is not None else []
        wanted = _in_order([*replayable, *state.unacked()])
        state.restart_with(
            [record for record in wanted if record.publish_time_ns >= since_ns],
            ignore_before_ns=since_ns if since_ns > now_ns else 0,
        )

    def _seek_snapshot(self, state: SubscriptionState, name: str) -> None:
        snapshot = self._snapshot(name)
        topic = snapshot.topic
        if state not in topic.subscriptions:
            raise InvalidArgumentError(
                f"Snapshot {name!r} is of another topic ({topic.config.name!r}) than subscription "
                f"{state.config.name!r} ({state.config.topic!r})"
            )
        later = topic.retained.between(snapshot.next_sequence, topic.last_sequence)
        state.restart_with(_in_order([*snapshot.unacked, *later]))

    def _topic_of(self, state: SubscriptionState) -> TopicState | None:
        """None once the topic is deleted, even when another was created under its name."""
        topic = self._registry.topics.get(state.config.topic)
        return topic if topic is not None and state in topic.subscriptions else None

    def _snapshot(self, name: str) -> Snapshot:
        self._drop_expired_snapshots()
        found = self._registry.snapshots.get(name)
        if found is None:
            self._registry.check_open()
            raise SnapshotNotFoundError(name)
        return found

    def _drop_expired_snapshots(self) -> None:
        now_ns = self._clock.time_ns()
        expired = [n for n, s in self._registry.snapshots.items() if s.expires_ns <= now_ns]
        for name in expired:
            self._drop_snapshot(name)

    def _drop_snapshot(self, name: str) -> None:
        self._registry.snapshots.pop(name).topic.drop_snapshot(name)


def _check_new(kind: str, name: str, existing: object) -> None:
    if name in existing:  # type: ignore[operator]
        raise AlreadyExistsError(f"{kind} already exists: {name!r}; use it, or delete it first")


def _check_apart(config: SubscriptionConfig, others: Sequence[SubscriptionConfig]) -> None:
    """Of a work queue each message goes to one subscription."""
    for other in others:
        pairs = [(a, b) for a in config.subjects or (">",) for b in other.subjects or (">",)]
        if any(overlap(a, b) for a, b in pairs):
            raise FailedPreconditionError(
                f"Topic {config.topic!r} is a work queue, and subscription {other.name!r} has what "
                f"{config.name!r} asks for; give each subjects of its own"
            )


def _in_order(records: list[Record]) -> list[Record]:
    unique = {record.sequence: record for record in records}
    return [unique[sequence] for sequence in sorted(unique)]
