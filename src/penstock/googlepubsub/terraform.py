"""Topics and subscriptions as Terraform resources of Google's provider."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.googlepubsub.gcloud import seconds

_NOT_A_LABEL = re.compile(r"[^A-Za-z0-9_-]")
Block = Mapping[str, Any]
"""Arguments of a block by name; a mapping is a block within it, None is left out."""


def resources(topics: Sequence[Any], subscriptions: Sequence[Any]) -> Iterator[str]:
    """One a block. A subscription names its topics by reference where they are made here, so that
    Terraform makes them first."""
    made = {topic.name: f"google_pubsub_topic.{_label(topic.name)}.id" for topic in topics}
    for topic in topics:
        yield _resource("google_pubsub_topic", topic.name, _topic(topic))
    for one in subscriptions:
        yield _resource("google_pubsub_subscription", one.name, _subscription(one, made))


def _topic(topic: Any) -> Block:
    return {
        "project": _quoted(topic.name.split("/")[1]),
        "name": _quoted(topic.name.rpartition("/")[2]),
        "message_retention_duration": _retention(topic),
    }


def _subscription(subscription: Any, made: Mapping[str, str]) -> Block:
    policy = subscription.expiration_policy
    return {
        "project": _quoted(subscription.name.split("/")[1]),
        "name": _quoted(subscription.name.rpartition("/")[2]),
        "topic": _reference(subscription.topic, made),
        "ack_deadline_seconds": str(subscription.ack_deadline_seconds),
        "enable_message_ordering": _flag(subscription.enable_message_ordering),
        "enable_exactly_once_delivery": _flag(subscription.enable_exactly_once_delivery),
        "retain_acked_messages": _flag(subscription.retain_acked_messages),
        "message_retention_duration": _retention(subscription),
        "filter": _quoted(subscription.filter) if subscription.filter else None,
        # An empty one is the provider's way to say never.
        "expiration_policy": {
            "ttl": _quoted(seconds(policy.ttl) if policy.HasField("ttl") else ""),
        },
        "dead_letter_policy": _dead_letters(subscription, made),
        "retry_policy": _retries(subscription),
    }


def _dead_letters(subscription: Any, made: Mapping[str, str]) -> Block | None:
    if not subscription.HasField("dead_letter_policy"):
        return None
    policy = subscription.dead_letter_policy
    return {
        "dead_letter_topic": _reference(policy.dead_letter_topic, made),
        "max_delivery_attempts": str(policy.max_delivery_attempts),
    }


def _retries(subscription: Any) -> Block | None:
    if not subscription.HasField("retry_policy"):
        return None
    policy = subscription.retry_policy
    return {
        "minimum_backoff": _quoted(seconds(policy.minimum_backoff)),
        "maximum_backoff": _quoted(seconds(policy.maximum_backoff)),
    }


def _resource(kind: str, name: str, arguments: Block) -> str:
    body = "\n".join(_lines(arguments, "  "))
    return f'resource "{kind}" "{_label(name)}" {{\n{body}\n}}'


def _lines(arguments: Block, indent: str) -> Iterator[str]:
    given = {name: value for name, value in arguments.items() if value is not None}
    width = max((len(name) for name, value in given.items() if isinstance(value, str)), default=0)
    for name, value in given.items():
        if isinstance(value, str):
            yield f"{indent}{name:<{width}} = {value}"
        else:
            yield from (f"{indent}{name} {{", *_lines(value, f"{indent}  "), f"{indent}}}")


def _quoted(value: str) -> str:
    """Quoted as Terraform does: as JSON, and without its templates."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def _flag(value: bool) -> str | None:
    return "true" if value else None


def _retention(resource: Any) -> str | None:
    if not resource.HasField("message_retention_duration"):
        return None
    return _quoted(seconds(resource.message_retention_duration))


def _reference(topic: str, made: Mapping[str, str]) -> str:
    return made.get(topic) or _quoted(topic)


def _label(resource: str) -> str:
    """A name of Terraform's own begins with a letter and has no dots."""
    return _NOT_A_LABEL.sub("_", resource.rpartition("/")[2])
