"""Topics and subscriptions between Google's form and a broker's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.clock import NS, PreciseTime
from penstock.config import (
    DAY,
    DeadLetterPolicy,
    RetryPolicy,
    SubscriptionConfig,
    TopicConfig,
    check_duration,
)
from penstock.errors import InvalidArgumentError
from penstock.googlepubsub.names import DELETED_TOPIC, SUBSCRIPTIONS, TOPICS, Names

_MONTH = 31 * DAY
_DEFAULT_ACK_DEADLINE = 10
_DEFAULT_ATTEMPTS = 5
# What a subscription of a deleted topic is said to belong to; Google forgets what it was called.
_GONE = "deleted-topic"


def read_topic(topic: Any, names: Names, now: TopicConfig | None = None) -> TopicConfig:
    """What a topic is to be, checked against Google's bounds; `now` is what it is already."""
    name = names.of(TOPICS, topic.name, "name")
    retention = 0.0
    if topic.HasField("message_retention_duration"):
        retention = seconds_of(topic.message_retention_duration)
        check_duration("message_retention_duration", retention, 600, _MONTH)
    return replace(now or TopicConfig(name=name), message_retention=retention)


def write_topic(topic: Any, config: TopicConfig, names: Names) -> None:
    """The fields of a topic that a broker knows about."""
    topic.name = names.resource(TOPICS, config.name)
    topic.ClearField("message_retention_duration")
    if config.message_retention:
        write_duration(topic.message_retention_duration, config.message_retention)


def read_subscription(
    subscription: Any, names: Names, now: SubscriptionConfig | None = None
) -> SubscriptionConfig:
    """What a subscription is to be, checked against Google's bounds; `now` is what it is."""
    retention = 7 * DAY
    if subscription.HasField("message_retention_duration"):
        retention = seconds_of(subscription.message_retention_duration)
    check_duration("message_retention_duration", retention, 600, _MONTH)
    deadline = subscription.ack_deadline_seconds or _DEFAULT_ACK_DEADLINE
    check_duration("ack_deadline_seconds", deadline, 10, 600)
    return SubscriptionConfig(
        name=names.of(SUBSCRIPTIONS, subscription.name, "name"),
        topic=now.topic if now is not None else _topic(subscription, names),
        ack_deadline=float(deadline),
        message_ordering=subscription.enable_message_ordering,
        enable_exactly_once_delivery=subscription.enable_exactly_once_delivery,
        filter=subscription.filter,
        dead_letter_policy=_dead_letter_policy(subscription, names),
        retry_policy=_retry_policy(subscription),
        retain_acked_messages=subscription.retain_acked_messages,
        message_retention=retention,
        expires_after=_expires_after(subscription),
        push=now.push if now is not None else None,
    )


def write_subscription(subscription: Any, config: SubscriptionConfig, names: Names) -> None:
    """The fields of a subscription that a broker knows about."""
    subscription.name = names.resource(SUBSCRIPTIONS, config.name)
    subscription.topic = names.resource(TOPICS, config.topic)
    # Google counts in whole seconds: at least what was asked for.
    subscription.ack_deadline_seconds = -int(-config.ack_deadline // 1)
    subscription.retain_acked_messages = config.retain_acked_messages
    write_duration(subscription.message_retention_duration, config.message_retention)
    subscription.enable_message_ordering = config.message_ordering
    subscription.enable_exactly_once_delivery = config.enable_exactly_once_delivery
    subscription.filter = config.filter
    # Present without a ttl is Google's way to say never.
    subscription.expiration_policy.SetInParent()
    subscription.expiration_policy.ClearField("ttl")
    if config.expires_after is not None:
        write_duration(subscription.expiration_policy.ttl, config.expires_after)
    _write_dead_letter_policy(subscription, config.dead_letter_policy, names)
    _write_retry_policy(subscription, config.retry_policy)


def write_time(timestamp: Any, ns: int) -> None:
    timestamp.seconds, timestamp.nanos = divmod(ns, NS)
    timestamp.SetInParent()


def moment_of(timestamp: Any) -> PreciseTime:
    return PreciseTime.from_ns(timestamp.seconds * NS + timestamp.nanos)


def seconds_of(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / NS)


def write_duration(duration: Any, seconds: float) -> None:
    duration.seconds, duration.nanos = divmod(round(seconds * NS), NS)
    duration.SetInParent()


def _topic(subscription: Any, names: Names) -> str:
    if subscription.topic == DELETED_TOPIC:
        return _GONE
    return names.of(TOPICS, subscription.topic, "topic")


def _dead_letter_policy(subscription: Any, names: Names) -> DeadLetterPolicy | None:
    policy = subscription.dead_letter_policy
    if not policy.ListFields():  # Not there, or emptied field by field.
        return None
    attempts = policy.max_delivery_attempts or _DEFAULT_ATTEMPTS
    if not 5 <= attempts <= 100:
        raise InvalidArgumentError(
            "dead_letter_policy.max_delivery_attempts must be between 5 and 100 (inclusive), not "
            f"{attempts}"
        )
    return DeadLetterPolicy(
        topic=names.of(TOPICS, policy.dead_letter_topic, "dead_letter_policy.dead_letter_topic"),
        max_delivery_attempts=attempts,
    )


def _write_dead_letter_policy(
    subscription: Any, policy: DeadLetterPolicy | None, names: Names
) -> None:
    subscription.ClearField("dead_letter_policy")
    if policy is not None:
        subscription.dead_letter_policy.dead_letter_topic = names.resource(TOPICS, policy.topic)
        subscription.dead_letter_policy.max_delivery_attempts = policy.max_delivery_attempts


def _retry_policy(subscription: Any) -> RetryPolicy | None:
    if not subscription.HasField("retry_policy"):
        return None
    policy = subscription.retry_policy
    # Each has a default of its own, which gives way to the other where that was asked for.
    least = seconds_of(policy.minimum_backoff) if policy.HasField("minimum_backoff") else None
    most = seconds_of(policy.maximum_backoff) if policy.HasField("maximum_backoff") else None
    if least is None:
        least = min(10.0, most if most is not None else 10.0)
    return RetryPolicy(minimum_backoff=least, maximum_backoff=600.0 if most is None else most)


def _write_retry_policy(subscription: Any, policy: RetryPolicy | None) -> None:
    subscription.ClearField("retry_policy")
    if policy is not None:
        write_duration(subscription.retry_policy.minimum_backoff, policy.minimum_backoff)
        write_duration(subscription.retry_policy.maximum_backoff, policy.maximum_backoff)


def _expires_after(subscription: Any) -> float | None:
    if not subscription.HasField("expiration_policy"):
        return _MONTH
    if not subscription.expiration_policy.HasField("ttl"):
        return None
    ttl = seconds_of(subscription.expiration_policy.ttl)
    if ttl == 0:
        return None
    check_duration("expiration_policy.ttl", ttl, DAY, 3650 * DAY)
    return ttl
