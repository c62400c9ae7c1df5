"""What operators do to Google Pub/Sub."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from penstock.broker import SnapshotStatus, SubscriptionStatus, TopicStatus, Usage
from penstock.brokers.google.connection import Connection
from penstock.clock import to_ns
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.errors import InvalidArgumentError, UnimplementedError
from penstock.googlepubsub.messages import FieldMask, Subscription, Topic, message
from penstock.googlepubsub.names import DELETED_TOPIC, SNAPSHOTS, SUBSCRIPTIONS, TOPICS, Names
from penstock.googlepubsub.resources import (
    moment_of,
    read_subscription,
    read_topic,
    write_subscription,
    write_time,
    write_topic,
)
from penstock.rules.filters import parse_filter

_PAGE = 1000
_UNKNOWN = -1
_MOST_REMEMBERED = 4096
# What of a subscription can be changed, by Google's names.
_CHANGEABLE = {
    "ack_deadline": "ack_deadline_seconds",
    "enable_exactly_once_delivery": "enable_exactly_once_delivery",
    "dead_letter_policy": "dead_letter_policy",
    "retry_policy": "retry_policy",
    "retain_acked_messages": "retain_acked_messages",
    "message_retention": "message_retention_duration",
    "expires_after": "expiration_policy",
}


Changed = Callable[[str, SubscriptionConfig | None], Awaitable[None]]


class GoogleAdmin:
    """`changed` is told what a subscription is from now on; None: it is deleted."""

    def __init__(self, connection: Connection, names: Names, changed: Changed) -> None:
        self._connection = connection
        self._names = names
        self._changed = changed
        # Of subscriptions we know: Google forgets what a deleted topic was called.
        self._topics: OrderedDict[str, str] = OrderedDict()

    async def create_topic(self, config: TopicConfig) -> None:
        topic = Topic()
        write_topic(topic, config, self._names)
        await self._connection.call("CreateTopic", topic)

    async def update_topic(self, config: TopicConfig) -> None:
        topic = Topic()
        write_topic(topic, config, self._names)
        mask = FieldMask(paths=["message_retention_duration"])
        await self._call("UpdateTopic", topic=topic, update_mask=mask)

    async def delete_topic(self, topic: str) -> None:
        await self._call("DeleteTopic", topic=self._names.resource(TOPICS, topic))

    async def list_topics(self) -> Sequence[str]:
        found = await self._listed("ListTopics", "topics", project=self._project)
        return [self._names.of(TOPICS, topic.name, "name") for topic in found]

    async def describe_topic(self, topic: str) -> TopicStatus:
        resource = self._names.resource(TOPICS, topic)
        found = await self._call("GetTopic", topic=resource)
        return TopicStatus(
            config=read_topic(found, self._names),
            subscriptions=tuple(await self.list_subscriptions(topic)),
            published=_UNKNOWN,
        )

    async def create_subscription(self, config: SubscriptionConfig) -> None:
        if config.push is not None:
            raise UnimplementedError(
                f"Subscription {config.name!r}: Google pushes to HTTP endpoints, not to subjects; "
                "leave push out"
            )
        if config.filter:
            parse_filter(config.filter)
        await self._connection.call("CreateSubscription", self._subscription(config))
        self._remember(config)

    async def update_subscription(self, config: SubscriptionConfig) -> None:
        now = (await self.describe_subscription(config.name)).config
        now.check_change(config)
        changed = [f.name for f in fields(now) if getattr(now, f.name) != getattr(config, f.name)]
        if changed:
            await self._call(
                "UpdateSubscription",
                subscription=self._subscription(config),
                update_mask=FieldMask(paths=[_CHANGEABLE[name] for name in changed]),
            )
            await self._changed(config.name, config)

    async def detach_subscription(self, subscription: str) -> None:
        await self._call("DetachSubscription", subscription=self._resource(subscription))

    async def delete_subscription(self, subscription: str) -> None:
        await self._call("DeleteSubscription", subscription=self._resource(subscription))
        await self._changed(subscription, None)

    async def list_subscriptions(self, topic: str | None = None) -> Sequence[str]:
        if topic is None:
            found = await self._listed("ListSubscriptions", "subscriptions", project=self._project)
            return [self._names.of(SUBSCRIPTIONS, one.name, "name") for one in found]
        resource = self._names.resource(TOPICS, topic)
        found = await self._listed("ListTopicSubscriptions", "subscriptions", topic=resource)
        return sorted(self._names.of(SUBSCRIPTIONS, name, "subscriptions") for name in found)

    async def describe_subscription(self, subscription: str) -> SubscriptionStatus:
        """Google counts the backlog for its monitoring only; nothing is said of it here."""
        found = await self._call("GetSubscription", subscription=self._resource(subscription))
        config = read_subscription(found, self._names)
        if found.topic == DELETED_TOPIC:
            config = replace(config, topic=self._topics.get(subscription, config.topic))
        else:
            self._remember(config)
        return SubscriptionStatus(
            config=config,
            topic_deleted=found.topic == DELETED_TOPIC,
            detached=found.detached,
        )

    async def usage(self) -> Usage:
        raise UnimplementedError("Google Pub/Sub does not tell what it holds; see its monitoring")

    async def create_snapshot(self, snapshot: str, subscription: str) -> None:
        await self._call(
            "CreateSnapshot",
            name=self._names.resource(SNAPSHOTS, snapshot),
            subscription=self._resource(subscription),
        )

    async def list_snapshots(self, topic: str | None = None) -> Sequence[str]:
        if topic is None:
            found = await self._listed("ListSnapshots", "snapshots", project=self._project)
            return [self._names.of(SNAPSHOTS, one.name, "name") for one in found]
        resource = self._names.resource(TOPICS, topic)
        found = await self._listed("ListTopicSnapshots", "snapshots", topic=resource)
        return sorted(self._names.of(SNAPSHOTS, name, "snapshots") for name in found)

    async def describe_snapshot(self, snapshot: str) -> SnapshotStatus:
        resource = self._names.resource(SNAPSHOTS, snapshot)
        found = await self._call("GetSnapshot", snapshot=resource)
        deleted = found.topic == DELETED_TOPIC
        return SnapshotStatus(
            topic="deleted-topic" if deleted else self._names.of(TOPICS, found.topic, "topic"),
            expires=moment_of(found.expire_time),
            topic_deleted=deleted,
        )

    async def delete_snapshot(self, snapshot: str) -> None:
        await self._call("DeleteSnapshot", snapshot=self._names.resource(SNAPSHOTS, snapshot))

    async def seek(self, subscription: str, to: datetime | str) -> None:
        request = message("SeekRequest")(subscription=self._resource(subscription))
        if isinstance(to, str):
            request.snapshot = self._names.resource(SNAPSHOTS, to)
        elif isinstance(to, datetime) and to.tzinfo is not None:
            write_time(request.time, to_ns(to))
        else:
            raise InvalidArgumentError(
                f"Subscription {subscription!r} seeks to a snapshot's name or an aware datetime "
                f"(with a time zone), not {to!r}"
            )
        await self._connection.call("Seek", request)

    def _remember(self, config: SubscriptionConfig) -> None:
        self._topics[config.name] = config.topic
        if len(self._topics) > _MOST_REMEMBERED:
            self._topics.popitem(last=False)

    @property
    def _project(self) -> str:
        return f"projects/{self._names.project}"

    def _resource(self, subscription: str) -> str:
        return self._names.resource(SUBSCRIPTIONS, subscription)

    def _subscription(self, config: SubscriptionConfig) -> Any:
        subscription = Subscription()
        write_subscription(subscription, config, self._names)
        return subscription

    async def _call(self, name: str, /, **request: Any) -> Any:
        return await self._connection.call(name, message(f"{name}Request")(**request))

    async def _listed(self, name: str, field: str, /, **request: Any) -> list[Any]:
        found: list[Any] = []
        token = ""
        while True:
            page = await self._call(name, page_size=_PAGE, page_token=token, **request)
            found += getattr(page, field)
            token = page.next_page_token
            if not token:
                return found
