"""Subscriptions as consumers: their configurations, both ways, and what a consumer allows."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.brokers.nats.protocol.configuration import MARK, marked_by_us, own_subjects
from penstock.brokers.nats.protocol.headers import encode_name, own_name
from penstock.clock import NS
from penstock.config import (
    DAY,
    DeadLetterPolicy,
    PushDelivery,
    RetryPolicy,
    ServerName,
    SubscriptionConfig,
    is_name,
)
from penstock.errors import FailedPreconditionError
from penstock.rules.filters import parse_filter
from penstock.rules.subjects import subject_filters

_DEFAULT_ACK_WAIT = 30.0


class PullLimits(msgspec.Struct, frozen=True):
    """What a consumer lets a request ask for; 0: anything."""

    messages: int = 0
    seconds: float = 0.0
    size: int = 0
    unsettled: int = 0
    """How many messages the consumer lends at a time, to all together."""


class Consumer(msgspec.Struct, frozen=True):
    """Where a subscription lives."""

    stream: str
    name: str
    config: SubscriptionConfig
    group: str = ""
    """What requests have to name, where clients are not all alike to a consumer."""
    is_pinned: bool = False
    """One client of the group is served at a time."""
    limits: PullLimits = PullLimits()
    acks_all_before: bool = False
    """An ack of one message is an ack of all before it."""

    @property
    def key(self) -> tuple[str, str]:
        """What no other consumer has, whatever its configuration."""
        return self.stream, self.name


def consumer_config(
    config: SubscriptionConfig, routed: tuple[str, ...], first: int
) -> dict[str, Any]:
    """A subscription as a durable pull consumer. No `backoff`: it would replace `ack_wait`."""
    policy, retry = config.dead_letter_policy, config.retry_policy
    tree = parse_filter(config.filter) if config.filter else None
    subjects = list(config.subjects)
    if tree is not None and not subjects:
        subjects = subject_filters(config.topic, routed, tree)
    mark = {
        "ordering": config.message_ordering,
        "exactly_once": config.enable_exactly_once_delivery,
        "filter": config.filter,
        "dead_letters": policy and [str(policy.topic), policy.max_delivery_attempts],
        "retry": retry and [retry.minimum_backoff, retry.maximum_backoff],
        "retain_acked": config.retain_acked_messages,
        "retention": config.message_retention,
        "begins": first,
        "expires": config.expires_after,
        "subjects": config.subjects,
    }
    name = encode_name(config.name)
    return {
        "name": name,
        "durable_name": name,
        "ack_policy": "explicit",
        "ack_wait": int(config.ack_deadline * NS),
        # Who gives up a message is decided by us, who know which deliveries nobody saw.
        "max_deliver": -1,
        **(_pushed(config.push) if config.push is not None else _PULLED),
        **(_ONE_AT_A_TIME if config.message_ordering and config.push is None else {}),
        "metadata": {MARK: msgspec.json.encode(mark).decode()},
        "deliver_policy": "all",
        # None: as many as its stream has.
        "num_replicas": config.replicas or 0,
        **({"inactive_threshold": int(config.expires_after * NS)} if config.expires_after else {}),
        **_filtered(subjects),
    }


def _filtered(subjects: list[str]) -> dict[str, Any]:
    """One is written as older servers and other clients know it."""
    if len(subjects) == 1:
        return {"filter_subject": subjects[0]}
    return {"filter_subjects": subjects} if subjects else {}


def updated_consumer(
    info: dict[str, Any], config: SubscriptionConfig, routed: tuple[str, ...]
) -> dict[str, Any]:
    """A consumer as it is, but for what of a subscription's configuration is new. Where it begins
    stays."""
    now, known = info["config"], consumer_of(info).config
    begins = int(marked_by_us(now).get("begins", 1))
    before = consumer_config(known, routed, begins)
    wanted = consumer_config(config, routed, begins)
    keys = ("ack_wait", "max_deliver", "num_replicas")
    changed = {key: wanted[key] for key in keys if wanted[key] != before[key]}
    if "ack_wait" in changed and now.get("backoff"):
        raise FailedPreconditionError(
            f"Subscription {config.name!r} cannot get another ack_deadline: it was made with a "
            "backoff, whose first step is its deadline; change that with the tools it was made with"
        )
    ends, ended = (one.get("inactive_threshold", 0) for one in (wanted, before))
    if ends != ended:
        changed["inactive_threshold"] = ends
    if wanted["metadata"] != before["metadata"]:
        changed["metadata"] = {**(now.get("metadata") or {}), **wanted["metadata"]}
    if config.filter != known.filter:
        filtered = {key: wanted[key] for key in _FILTERS if key in wanted}
        if not filtered and any(now.get(key) for key in _FILTERS):
            # All it has, in so many words: a consumer whose subjects are just taken away is not
            # told of new messages while somebody waits for them.
            filtered = _filtered(own_subjects(config.topic))
        now = {key: value for key, value in now.items() if key not in _FILTERS}
        changed |= filtered
    return {**now, **changed}


_FILTERS = ("filter_subject", "filter_subjects")
# A pull takes no more than it asks for; a push is bounded by what may be unsettled.
_PULLED = {"max_ack_pending": -1, "max_waiting": 512}
_PUSHED_AT_MOST = 1000
_SIGN_OF_LIFE = 5.0
# One client is served; after so long without a word from it, another that waits.
TAKE_OVER_AFTER = 6.0
_ONE_AT_A_TIME = {
    "priority_groups": ["ordered"],
    "priority_policy": "pinned_client",
    "priority_timeout": int(TAKE_OVER_AFTER * NS),
}


def _pushed(push: PushDelivery) -> dict[str, Any]:
    pushed = {"deliver_subject": push.subject, "max_ack_pending": _PUSHED_AT_MOST}
    if push.group:
        # Any member is asked whether to go on, and all wait for one that is slow to say so, or that
        # is somebody else's and never does.
        return {**pushed, "deliver_group": push.group}
    # A server ends a connection on which 64 MB wait to be read, unless we say what we have read.
    return {**pushed, "flow_control": True, "idle_heartbeat": int(_SIGN_OF_LIFE * NS)}


def unfinished(info: dict[str, Any]) -> int | None:
    """Where a consumer should begin that was created and never moved there, if that is so."""
    begins = int(marked_by_us(info["config"]).get("begins", 1))
    moved = info["delivered"]["stream_seq"] >= begins - 1 or info["delivered"]["consumer_seq"]
    return None if moved else begins


def finished_consumer(info: dict[str, Any]) -> dict[str, Any] | None:
    """A consumer as it is, but that it was moved to where it begins; None when it says so already.
    Whoever moves it elsewhere says so first, or it would be taken for one that never was."""
    now = info["config"]
    mark = marked_by_us(now)
    if mark.get("begins", 1) == 1:
        return None
    text = msgspec.json.encode({**mark, "begins": 1}).decode()
    return {**now, "metadata": {**now["metadata"], MARK: text}}


def consumer_of(info: dict[str, Any]) -> Consumer:
    config = info["config"]
    marked = marked_by_us(config)
    dead, retry = marked.get("dead_letters"), marked.get("retry")
    return Consumer(
        info["stream_name"],
        info["name"],
        SubscriptionConfig(
            name=own_name(info["name"]),
            topic=own_name(info["stream_name"]),
            ack_deadline=min(config.get("ack_wait", 30 * NS) / NS, 600.0),
            message_ordering=marked.get("ordering", False),
            enable_exactly_once_delivery=marked.get("exactly_once", False),
            filter=marked.get("filter", ""),
            dead_letter_policy=_dead_letter_policy(*dead) if dead else None,
            retry_policy=RetryPolicy(minimum_backoff=retry[0], maximum_backoff=retry[1])
            if retry
            else None,
            push=PushDelivery(
                subject=config["deliver_subject"], group=config.get("deliver_group", "")
            )
            if config.get("deliver_subject")
            else None,
            retain_acked_messages=marked.get("retain_acked", False),
            message_retention=marked.get("retention", 7 * DAY),
            replicas=config.get("num_replicas") or None,
            expires_after=_expires_after(config),
            subjects=_asked_subjects(config, marked),
        ),
        next(iter(config.get("priority_groups") or ()), ""),
        config.get("priority_policy") == "pinned_client",
        PullLimits(
            config.get("max_batch", 0),
            config.get("max_expires", 0) / NS,
            config.get("max_bytes", 0),
            max(config.get("max_ack_pending", 0), 0),
        ),
        config.get("ack_policy") == "all",
    )


def _expires_after(config: dict[str, Any]) -> float | None:
    idle = config.get("inactive_threshold", 0) / NS
    return max(idle, 1.0) if idle else None


def _dead_letter_policy(topic: str, attempts: int) -> DeadLetterPolicy:
    known = topic if is_name(topic) else ServerName(topic)
    return DeadLetterPolicy(topic=known, max_delivery_attempts=attempts)


def _asked_subjects(config: dict[str, Any], marked: dict[str, Any]) -> tuple[str, ...]:
    """Those that were asked for; of a consumer that somebody else made, those it has."""
    return tuple(marked.get("subjects", ())) if marked else seen_subjects(config)


def seen_subjects(config: dict[str, Any]) -> tuple[str, ...]:
    """Those that the server lets a consumer see; none: all."""
    one = config.get("filter_subject")
    return (one,) if one else tuple(config.get("filter_subjects") or ())


def assumed_consumer(topic: str, subscription: str) -> Consumer:
    """What there is to know of a consumer that we may not ask for."""
    config = SubscriptionConfig(name=subscription, topic=topic, ack_deadline=_DEFAULT_ACK_WAIT)
    return Consumer(encode_name(topic), encode_name(subscription), config)
