"""Resources as the emulator shows them: what the broker knows, and what is kept beside it."""

from __future__ import annotations

from typing import Any

from penstock.broker import SubscriptionStatus, TopicStatus
from penstock.config import TopicConfig
from penstock.errors import InvalidArgumentError
from penstock.googlepubsub.messages import FieldMask
from penstock.googlepubsub.names import DELETED_TOPIC, Names
from penstock.googlepubsub.resources import write_duration, write_subscription, write_topic

_ACTIVE = 1
_UNCHANGEABLE = {
    "Topic": {"name", "kms_key_name", "state", "satisfies_pzs", "tags"},
    "Subscription": {
        *("name", "topic", "filter", "enable_message_ordering", "detached", "state", "tags"),
        *("topic_message_retention_duration", "analytics_hub_subscription_info"),
    },
    "Snapshot": {"name", "topic", "expire_time"},
}


def topic_of(status: TopicStatus, kept: Any, names: Names) -> Any:
    write_topic(kept, status.config, names)
    kept.state = _ACTIVE
    return kept


def subscription_of(
    status: SubscriptionStatus, kept: Any, names: Names, topic: TopicConfig | None
) -> Any:
    """`topic` is its topic, if that is still there."""
    write_subscription(kept, status.config, names)
    if status.topic_deleted:
        kept.topic = DELETED_TOPIC
    # Google's is there when it says nothing, and clients look into it.
    kept.push_config.SetInParent()
    kept.detached = status.detached
    kept.state = _ACTIVE
    kept.ClearField("topic_message_retention_duration")
    if topic is not None and topic.message_retention:
        write_duration(kept.topic_message_retention_duration, topic.message_retention)
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
    changed, asked = type(now)(), type(now)()
    changed.CopyFrom(now)
    asked.CopyFrom(wanted)
    for path in mask.paths:
        _reach(asked, path)
    mask.MergeMessage(asked, changed, replace_message_field=True, replace_repeated_field=True)
    return changed


def _reach(message: Any, path: str) -> None:
    """A field whose message is not there is empty; merging would take it for not asked about."""
    for parent in path.split(".")[:-1]:
        message = getattr(message, parent)
        message.SetInParent()
