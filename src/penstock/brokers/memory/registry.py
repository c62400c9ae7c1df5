"""What exists: topics, subscriptions and snapshots by name."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.brokers.memory.subscription import SubscriptionState
from penstock.brokers.memory.topic import TopicState
from penstock.errors import ClosedError, SubscriptionNotFoundError, TopicNotFoundError
from penstock.message import Record


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a subscription had not acked at one moment; all published later belongs to it too."""

    topic: TopicState
    unacked: tuple[Record, ...]
    next_sequence: int
    expires_ns: int


class Registry:
    """Finds by name, or raises what the port promises."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicState] = {}
        self.subscriptions: dict[str, SubscriptionState] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.closed = False

    def topic(self, name: str) -> TopicState:
        found = self.topics.get(name)
        if found is None:
            self.check_open()
            raise TopicNotFoundError(name)
        return found

    def subscription(self, name: str) -> SubscriptionState:
        found = self.subscriptions.get(name)
        if found is None:
            self.check_open()
            raise SubscriptionNotFoundError(name)
        return found

    def check_open(self) -> None:
        if self.closed:
            raise ClosedError("The memory broker is closed; connect again with a new PubSub")

    def close(self) -> None:
        self.closed = True
        reason = ClosedError("The memory broker was closed while waiting for messages")
        for subscription in self.subscriptions.values():
            subscription.end(reason)
        self.topics.clear()
        self.subscriptions.clear()
        self.snapshots.clear()
