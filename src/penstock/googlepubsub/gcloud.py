"""Topics and subscriptions as the `gcloud` commands that make them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.googlepubsub.resources import seconds_of


def commands(topics: Sequence[Any], subscriptions: Sequence[Any]) -> Iterator[str]:
    """One a line, in an order in which each finds what it needs. Resources are Google's own."""
    yield from map(_topic, topics)
    yield from map(_subscription, subscriptions)
    for subscription in subscriptions:
        if subscription.HasField("dead_letter_policy"):
            yield from _permissions(subscription)


def _topic(topic: Any) -> str:
    project, name = _parts(topic.name)
    return _command("topics create", name, project, **_retention(topic))


def _subscription(subscription: Any) -> str:
    project, name = _parts(subscription.name)
    flags: dict[str, str | bool] = {
        "topic": subscription.topic,
        "ack-deadline": str(subscription.ack_deadline_seconds),
        "enable-message-ordering": subscription.enable_message_ordering,
        "enable-exactly-once-delivery": subscription.enable_exactly_once_delivery,
        "retain-acked-messages": subscription.retain_acked_messages,
        "message-filter": subscription.filter,
        **_retention(subscription),
        "expiration-period": _expiration(subscription),
    }
    if subscription.HasField("dead_letter_policy"):
        policy = subscription.dead_letter_policy
        flags["dead-letter-topic"] = policy.dead_letter_topic
        flags["max-delivery-attempts"] = str(policy.max_delivery_attempts)
    if subscription.HasField("retry_policy"):
        policy = subscription.retry_policy
        flags["min-retry-delay"] = seconds(policy.minimum_backoff)
        flags["max-retry-delay"] = seconds(policy.maximum_backoff)
    return _command("subscriptions create", name, project, **flags)


def _permissions(subscription: Any) -> Iterator[str]:
    """Google moves dead letters itself, and needs to be let."""
    project, name = _parts(subscription.name)
    dead_project, dead = _parts(subscription.dead_letter_policy.dead_letter_topic)
    number = f"$(gcloud projects describe {project} --format='value(projectNumber)')"
    agent = f'"serviceAccount:service-{number}@gcp-sa-pubsub.iam.gserviceaccount.com"'
    for kind, of, whose, role in (
        ("topics", dead, dead_project, "publisher"),
        ("subscriptions", name, project, "subscriber"),
    ):
        begin = _command(f"{kind} add-iam-policy-binding", of, whose)
        yield f"{begin} --member={agent} --role=roles/pubsub.{role}"


def seconds(duration: Any) -> str:
    """As Google writes durations: `600s`, `0.5s`."""
    return f"{seconds_of(duration):.9f}".rstrip("0").rstrip(".") + "s"


def _retention(resource: Any) -> dict[str, str]:
    if not resource.HasField("message_retention_duration"):
        return {}
    return {"message-retention-duration": seconds(resource.message_retention_duration)}


def _expiration(subscription: Any) -> str:
    policy = subscription.expiration_policy
    return seconds(policy.ttl) if policy.HasField("ttl") else "never"


def _command(verb: str, name: str, project: str, /, **flags: str | bool) -> str:
    words = ["gcloud", "pubsub", *verb.split(), name, f"--project={project}"]
    for flag, value in flags.items():
        if value:
            words.append(f"--{flag}" if value is True else f"--{flag}={value}")
    return shlex.join(words)


def _parts(resource: str) -> tuple[str, str]:
    _, project, _, name = resource.split("/", 3)
    return project, name
