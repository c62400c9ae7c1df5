"""Topics and subscriptions between Google's form and the broker's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.broker import SubscriptionStatus, TopicStatus
from penstock.clock import NS, PreciseTime
from penstock.config import (
    DAY,
    DeadLetterPolicy,
    RetryPolicy,
    SubscriptionConfig,
    TopicConfig,
    check_duration,
)
from penstock.emulator.names import DELETED_TOPIC, SUBSCRIPTIONS, TOPICS, Names
from penstock.errors import InvalidArgumentError
from penstock.googlepubsub.messages import FieldMask
from penstock.rules.filters import parse_filter

ACTIVE = 1
_MONTH = 31 * DAY
_DEFAULT_ACK_DEADLINE = 10
_DEFAULT_ATTEMPTS = 5
_UNCHANGEABLE = {
    "Topic": {"name", "kms_key_name", "state", "satisfies_pzs", "tags"},
    "Subscription": {
        *("name", "topic", "filter", "enable_message_ordering", "detached", "state", "tags"),
        *("topic_message_retention_duration", "analytics_hub_subscription_info"),
    },
    "Snapshot": {"name", "topic", "expire_time"},
}


def topic_config(topic: Any, names: Names, now: TopicConfig | None = None) -> TopicConfig:
    """What the broker is to do for a topic; `now` is what it does already."""
    name = names.of(TOPICS, topic.name, "name")
    retention = 0.0
    if topic.HasField("message_retention_duration"):
        retention = _seconds(topic.message_retention_duration)
        check_duration("message_retention_duration", retention, 600, _MONTH)
    return replace(now or TopicConfig(name=name), message_retention=retention)


def topic_of(status: TopicStatus, kept: Any, names: Names) -> Any:
    """Google's form: what was kept beside the broker, and what the broker knows."""
    kept.name = names.resource(TOPICS, status.config.name)
    kept.state = ACTIVE
    kept.ClearField("message_retention_duration")
    if status.config.message_retention:
        _write_duration(kept.message_retention_duration, status.config.message_retention)
    return kept


def subscription_config(
    subscription: Any, names: Names, now: SubscriptionConfig | None = None
) -> SubscriptionConfig:
    """What the broker is to do for a subscription; `now` is what it does already."""
    retention = 7 * DAY
    if subscription.HasField("message_retention_duration"):
        retention = _seconds(subscription.message_retention_duration)
    check_duration("message_retention_duration", retention, 600, _MONTH)
    deadline = subscription.ack_deadline_seconds or _DEFAULT_ACK_DEADLINE
    check_duration("ack_deadline_seconds", deadline, 10, 600)
    if subscription.filter:
        parse_filter(subscription.filter)
    topic = now.topic if now is not None else names.of(TOPICS, subscription.topic, "topic")
    return SubscriptionConfig(
        name=names.of(SUBSCRIPTIONS, subscription.name, "name"),
        topic=topic,
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


def subscription_of(
    status: SubscriptionStatus, kept: Any, names: Names, topic: TopicConfig | None
) -> Any:
    """Google's form: what was kept beside the broker, and what the broker knows."""
    config = status.config
    kept.name = names.resource(SUBSCRIPTIONS, config.name)
    kept.topic = DELETED_TOPIC if status.topic_deleted else names.resource(TOPICS, config.topic)
    kept.ack_deadline_seconds = round(config.ack_deadline)
    kept.retain_acked_messages = config.retain_acked_messages
    _write_duration(kept.message_retention_duration, config.message_retention)
    kept.enable_message_ordering = config.message_ordering
    kept.enable_exactly_once_delivery = config.enable_exactly_once_delivery
    kept.filter = config.filter
    kept.detached = status.detached
    kept.state = ACTIVE
    # Present without a ttl is Google's way to say never.
    kept.expiration_policy.SetInParent()
    kept.expiration_policy.ClearField("ttl")
    if config.expires_after is not None:
        _write_duration(kept.expiration_policy.ttl, config.expires_after)
    kept.ClearField("topic_message_retention_duration")
    if topic is not None and topic.message_retention:
        _write_duration(kept.topic_message_retention_duration, topic.message_retention)
    _write_policies(kept, config, names)
    return kept


def merged(now: Any, wanted: Any, mask: Any) -> Any:
    """A copy of `now` with the fields that the mask names taken from `wanted`."""
    kind = now.DESCRIPTOR.name
    if not mask.paths:
        raise InvalidArgumentError(
            f"The update_mask in the Update{kind}Request must be set, and must contain a non-empty "
            "paths list."
        )
    for path in mask.paths:
        if not FieldMask(paths=[path]).IsValidForDescriptor(now.DESCRIPTOR):
            raise InvalidArgumentError(
                f"Invalid update_mask provided in the Update{kind}Request: {path!r} is not a field "
                f"of {kind}."
            )
        if path.partition(".")[0] in _UNCHANGEABLE[kind]:
            raise InvalidArgumentError(
                f"Invalid update_mask provided in the Update{kind}Request: the {path!r} field "
                f"of {kind} is not mutable."
            )
    changed = type(now)()
    changed.CopyFrom(now)
    mask.MergeMessage(wanted, changed, replace_message_field=True, replace_repeated_field=True)
    return changed


def time_of(ns: int, timestamp: Any) -> None:
    timestamp.seconds, timestamp.nanos = divmod(ns, NS)


def moment_of(timestamp: Any) -> PreciseTime:
    return PreciseTime.from_ns(timestamp.seconds * NS + timestamp.nanos)


def _dead_letter_policy(subscription: Any, names: Names) -> DeadLetterPolicy | None:
    if not subscription.HasField("dead_letter_policy"):
        return None
    policy = subscription.dead_letter_policy
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


def _retry_policy(subscription: Any) -> RetryPolicy | None:
    if not subscription.HasField("retry_policy"):
        return None
    policy = subscription.retry_policy
    # Each has a default of its own, which gives way to the other where that was asked for.
    least = _seconds(policy.minimum_backoff) if policy.HasField("minimum_backoff") else None
    most = _seconds(policy.maximum_backoff) if policy.HasField("maximum_backoff") else None
    if least is None:
        least = min(10.0, most if most is not None else 10.0)
    return RetryPolicy(minimum_backoff=least, maximum_backoff=600.0 if most is None else most)


def _expires_after(subscription: Any) -> float | None:
    if not subscription.HasField("expiration_policy"):
        return _MONTH
    if not subscription.expiration_policy.HasField("ttl"):
        return None
    ttl = _seconds(subscription.expiration_policy.ttl)
    if ttl == 0:
        return None
    check_duration("expiration_policy.ttl", ttl, DAY, 3650 * DAY)
    return ttl


def _write_policies(kept: Any, config: SubscriptionConfig, names: Names) -> None:
    kept.ClearField("dead_letter_policy")
    if config.dead_letter_policy is not None:
        policy = config.dead_letter_policy
        kept.dead_letter_policy.dead_letter_topic = names.resource(TOPICS, policy.topic)
        kept.dead_letter_policy.max_delivery_attempts = policy.max_delivery_attempts
    kept.ClearField("retry_policy")
    if config.retry_policy is not None:
        _write_duration(kept.retry_policy.minimum_backoff, config.retry_policy.minimum_backoff)
        _write_duration(kept.retry_policy.maximum_backoff, config.retry_policy.maximum_backoff)


def _seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / NS)


def _write_duration(duration: Any, seconds: float) -> None:
    duration.seconds, duration.nanos = divmod(round(seconds * NS), NS)
    duration.SetInParent()
