"""The one check above the port: what is asked of a broker must be something it claims.

An adapter that knows no filters would take one in silence and deliver what it excludes. So whoever
passes a wish on to a broker calls the check for it here, and an outside broker need not refuse
what it has never heard of. Some flags need no check, because the client does it instead (ordering,
long extensions) or the answer says so (attempts, backlog): docs/brokers.md has the table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import cast

from penstock.broker import Broker, Log, ReleaseCounts
from penstock.config import DUPLICATE_WINDOW, SubscriptionConfig, TopicConfig
from penstock.errors import InvalidArgumentError, UnimplementedError
from penstock.message import Draft, PublishFault, Receipt
from penstock.optional_verbs import OnSent, publish_telling

_INSTEAD = {
    "filters": "leave it out and ack what you do not want, or publish to a topic for each kind",
    "dead_letters": "leave it out and publish what fails to a topic of your own",
    "retry_policy": "leave it out; what is nacked comes back at once",
    "delayed_nack": "nack without a delay; it comes back at once",
    "exactly_once": "leave it out and let handlers bear to see a message twice",
    "dedupe": "leave it out and let whoever receives drop what it has seen",
    "expectations": "leave it out",
    "ttl": "leave it out",
    "replicas": "leave them out",
    "push": "leave it out; messages are asked for then",
    "seek": "leave it out",
    "subjects": "leave it out and publish to a topic for each",
    "work_queues": "leave it out; what is acked is kept as long as the broker keeps anything",
    "updates": "delete it and create it again",
    "filter_updates": "delete the subscription and create it again, which loses its backlog",
    "detaching": "delete it instead",
    "expiration": "leave it out and delete subscriptions that nobody uses",
    "replay": "make a subscription and read that",
    "snapshots": "seek to a time instead, if the broker can",
}

_expect, _ttl = attrgetter("expect"), attrgetter("ttl")


def require(broker: Broker, capability: str, wish: str) -> None:
    """`UnimplementedError` unless the broker claims the capability."""
    if not getattr(broker.capabilities, capability):
        raise UnimplementedError(
            f"{wish} needs {capability!r}, which the {broker.name} broker does not claim; "
            f"{_INSTEAD[capability]}"
        )


def log_of(broker: Broker, wish: str) -> Log:
    """The broker's log, which `wish` needs."""
    require(broker, "replay", wish)
    if broker.log is None:
        raise AssertionError(f"The {broker.name} broker claims replay and has no log")
    return broker.log


def release_counts_of(broker: Broker) -> ReleaseCounts | None:
    """Who tells which deliveries nobody saw; None where they cost no attempt, or nobody knows."""
    return cast(ReleaseCounts, broker) if broker.capabilities.counts_releases else None


def check_topic(broker: Broker, config: TopicConfig) -> None:
    """Before a topic is created."""
    if config.duplicate_window not in (0, DUPLICATE_WINDOW):
        require(broker, "dedupe", f"duplicate_window of topic {config.name!r}")
    _check_replicas(broker, f"topic {config.name!r}", config.replicas)
    if config.subjects:
        require(broker, "subjects", f"subjects of topic {config.name!r}")
    if config.work_queue:
        require(broker, "work_queues", f"work_queue of topic {config.name!r}")
    if config.message_retention and not broker.capabilities.replay:
        # Kept for those who look back. Where nobody can, it would be kept for nothing.
        require(broker, "seek", f"message_retention of topic {config.name!r}")


def check_subscription(broker: Broker, config: SubscriptionConfig) -> None:
    """Before a subscription is created."""
    for option, capability in (
        ("filter", "filters"),
        ("dead_letter_policy", "dead_letters"),
        ("retry_policy", "retry_policy"),
        ("enable_exactly_once_delivery", "exactly_once"),
        ("push", "push"),
        ("retain_acked_messages", "seek"),
        ("expires_after", "expiration"),
        ("subjects", "subjects"),
    ):
        if getattr(config, option):
            require(broker, capability, f"{option} of subscription {config.name!r}")
    _check_replicas(broker, f"subscription {config.name!r}", config.replicas)
    policy, least = config.dead_letter_policy, broker.capabilities.least_delivery_attempts
    if policy is not None and policy.max_delivery_attempts < least:
        raise InvalidArgumentError(
            f"max_delivery_attempts of subscription {config.name!r} must be at least {least} with "
            f"the {broker.name} broker, not {policy.max_delivery_attempts}"
        )


def _check_replicas(broker: Broker, whose: str, replicas: int | None) -> None:
    if replicas is not None and replicas > 1:
        require(broker, "replicas", f"{replicas} replicas of {whose}")


async def update_topic(broker: Broker, config: TopicConfig) -> None:
    """Make the topic of that name what `config` says."""
    require(broker, "updates", f"Changing topic {config.name!r}")
    check_topic(broker, config)
    await broker.admin.update_topic(config)


async def update_subscription(broker: Broker, config: SubscriptionConfig) -> None:
    """Make the subscription of that name what `config` says."""
    require(broker, "updates", f"Changing subscription {config.name!r}")
    check_subscription(broker, config)
    if not broker.capabilities.filter_updates:
        now = (await broker.admin.describe_subscription(config.address)).config
        if now.filter != config.filter:
            require(broker, "filter_updates", f"A new filter of subscription {config.name!r}")
    await broker.admin.update_subscription(config)


async def detach_subscription(broker: Broker, subscription: str) -> None:
    """Take it from its topic for good."""
    require(broker, "detaching", f"Detaching subscription {subscription!r}")
    await broker.admin.detach_subscription(subscription)


def check_seek(broker: Broker, subscription: str, to: datetime | str) -> None:
    """Before a subscription is moved."""
    if isinstance(to, str):
        check_snapshot(broker, to)
    else:
        require(broker, "seek", f"Moving subscription {subscription!r} to a time")


def check_snapshot(broker: Broker, snapshot: str) -> None:
    """Before a snapshot is made, used or deleted."""
    require(broker, "snapshots", f"Snapshot {snapshot!r}")


def publish(
    broker: Broker, topic: str, drafts: Sequence[Draft], on_sent: OnSent | None = None
) -> Awaitable[Sequence[Receipt | PublishFault]]:
    """`broker.publish`, for drafts that may ask for more than to be stored: those that ask for what
    is not claimed are answered here, and not stored. `on_sent` is told when the others leave."""
    claims = broker.capabilities
    # This is on the way of every message: one look at all of them, and none where all is claimed.
    if (claims.expectations or not any(map(_expect, drafts))) and (
        claims.ttl or not any(map(_ttl, drafts))
    ):
        return _published(broker, topic, drafts, on_sent)
    return _publish_claimed(broker, topic, drafts, on_sent)


def _published(
    broker: Broker, topic: str, drafts: Sequence[Draft], on_sent: OnSent | None
) -> Awaitable[Sequence[Receipt | PublishFault]]:
    if on_sent is None:
        return broker.publish(topic, drafts)
    return publish_telling(broker, on_sent, topic, drafts)


async def _publish_claimed(
    broker: Broker, topic: str, drafts: Sequence[Draft], on_sent: OnSent | None
) -> Sequence[Receipt | PublishFault]:
    refused: dict[int, Receipt | PublishFault] = {}
    for at, draft in enumerate(drafts):
        try:
            _check_draft(broker, topic, draft)
        except UnimplementedError as error:
            refused[at] = PublishFault(error)
    others = [at for at in range(len(drafts)) if at not in refused]
    told = None if on_sent is None else lambda places: on_sent([others[at] for at in places])
    stored = await _published(broker, topic, [drafts[at] for at in others], told)
    answers = {**refused, **dict(zip(others, stored, strict=True))}
    return [answers[at] for at in range(len(drafts))]


def _check_draft(broker: Broker, topic: str, draft: Draft) -> None:
    if draft.expect is not None:
        require(broker, "expectations", f"expect of a message for topic {topic!r}")
    if draft.ttl is not None:
        require(broker, "ttl", f"ttl of a message for topic {topic!r}")


def check_delayed_nack(broker: Broker, subscription: str) -> None:
    """Before a message is nacked with a delay."""
    require(broker, "delayed_nack", f"Nacking with a delay in subscription {subscription!r}")
