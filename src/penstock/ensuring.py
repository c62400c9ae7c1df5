"""Making topics and subscriptions what somebody wants them to be, whether they exist or not.

What is missing is created. What exists is compared with what was asked for, and with nothing else:
what differs and can be changed is changed, with its backlog left as it is. What cannot be changed
is refused before anything is, and the refusal says what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from penstock.broker import Broker
from penstock.capabilities import (
    check_subscription,
    check_topic,
    update_subscription,
    update_topic,
)
from penstock.config import SubscriptionConfig, TopicConfig
from penstock.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError

Config = TypeVar("Config", TopicConfig, SubscriptionConfig)


async def ensure_topic(broker: Broker, wanted: TopicConfig, given: Mapping[str, Any]) -> None:
    """`given`: the options of `wanted` that somebody asked for."""
    check_topic(broker, wanted)
    try:
        found = (await broker.admin.describe_topic(wanted.name)).config
    except NotFoundError:
        try:
            await broker.admin.create_topic(wanted)
            return
        except AlreadyExistsError:  # Somebody else came first.
            found = (await broker.admin.describe_topic(wanted.name)).config
    differs = _differs(found, wanted, given)
    _refuse(broker, f"Topic {wanted.name!r}", found, differs, set(TopicConfig.KEPT))
    if differs:
        await update_topic(broker, replace(found, **differs))


async def ensure_subscription(
    broker: Broker, wanted: SubscriptionConfig, given: Mapping[str, Any]
) -> None:
    """`given`: the options of `wanted` that somebody asked for, beside its topic."""
    check_subscription(broker, wanted)
    try:
        found = await _subscription(broker, wanted)
    except NotFoundError:
        try:
            await broker.admin.create_subscription(wanted)
            return
        except AlreadyExistsError:
            found = await _subscription(broker, wanted)
    differs = _differs(found, wanted, {"topic", *given})
    kept = set(SubscriptionConfig.KEPT)
    if not broker.capabilities.filter_updates:
        kept.add("filter")
    _refuse(broker, f"Subscription {wanted.name!r}", found, differs, kept)
    if differs:
        await update_subscription(broker, replace(found, **differs))


async def _subscription(broker: Broker, wanted: SubscriptionConfig) -> SubscriptionConfig:
    return (await broker.admin.describe_subscription(wanted.address)).config


def _differs(found: Config, wanted: Config, given: Mapping[str, Any] | set[str]) -> dict[str, Any]:
    """What was asked for and is not so, as it was asked for."""
    asked = {option: getattr(wanted, option) for option in sorted(given)}
    return {option: value for option, value in asked.items() if getattr(found, option) != value}


def _refuse(
    broker: Broker, whose: str, found: Config, differs: dict[str, Any], kept: set[str]
) -> None:
    """Raise when one of these cannot be changed."""
    if not broker.capabilities.updates:
        kept = set(differs)
    fixed = [option for option in differs if option in kept]
    if fixed:
        told = "; ".join(
            f"{option} is {getattr(found, option)!r}, not {differs[option]!r}" for option in differs
        )
        raise FailedPreconditionError(
            f"{whose} exists and is not as asked for: {told}. The {broker.name} broker cannot "
            f"change {', '.join(fixed)}: ask for what is there, choose another name, or delete it "
            "and have it made anew, which loses what it holds"
        )
