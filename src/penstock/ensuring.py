"""Making topics and subscriptions what somebody wants them to be, whether they exist or not.

What is missing is created. What exists is compared with what was asked for, and with nothing else:
what differs and can be changed is changed, with its backlog left as it is. What cannot be changed
is refused before anything is, and the refusal says what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    NotFoundError,
    PermissionDeniedError,
)

Config = TypeVar("Config", TopicConfig, SubscriptionConfig)


async def ensure_topic(broker: Broker, wanted: TopicConfig, given: Iterable[str]) -> str:
    """`given`: the options of `wanted` that somebody asked for. Returns what was changed of one
    that existed, in words; "" when nothing was."""
    check_topic(broker, wanted)
    try:
        found = (await broker.admin.describe_topic(wanted.name)).config
    except NotFoundError:
        try:
            await broker.admin.create_topic(wanted)
            return ""
        except AlreadyExistsError:  # Somebody else came first.
            found = (await broker.admin.describe_topic(wanted.name)).config
    differs = _differs(found, wanted, given)
    whose = f"Topic {wanted.name!r}"
    _refuse(broker, whose, found, differs, set(TopicConfig.KEPT))
    with _permitted(whose, found, differs):
        if differs:
            await update_topic(broker, replace(found, **differs))
    return _changed(found, differs)


async def ensure_subscription(
    broker: Broker, wanted: SubscriptionConfig, given: Iterable[str]
) -> str:
    """`given`: the options of `wanted` that somebody asked for, beside its topic. Returns what was
    changed, as `ensure_topic` does."""
    check_subscription(broker, wanted)
    try:
        found = await _subscription(broker, wanted)
    except NotFoundError:
        try:
            await broker.admin.create_subscription(wanted)
            return ""
        except AlreadyExistsError:
            found = await _subscription(broker, wanted)
    differs = _differs(found, wanted, {"topic", *given})
    kept = set(SubscriptionConfig.KEPT)
    if not broker.capabilities.filter_updates:
        kept.add("filter")
    whose = f"Subscription {wanted.name!r}"
    _refuse(broker, whose, found, differs, kept)
    with _permitted(whose, found, differs):
        if differs:
            await update_subscription(broker, replace(found, **differs))
    return _changed(found, differs)


async def _subscription(broker: Broker, wanted: SubscriptionConfig) -> SubscriptionConfig:
    return (await broker.admin.describe_subscription(wanted.address)).config


def _differs(found: Config, wanted: Config, given: Iterable[str]) -> dict[str, Any]:
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
        raise FailedPreconditionError(
            f"{_refusal(whose, found, differs)}. The {broker.name} broker cannot "
            f"change {', '.join(fixed)}: ask for what is there, choose another name, or delete it "
            "and have it made anew, which loses what it holds"
        )


@contextmanager
def _permitted(whose: str, found: Config, differs: dict[str, Any]) -> Iterator[None]:
    """A change that somebody else would have to make is refused with what it is."""
    try:
        yield
    except PermissionDeniedError as error:
        raise FailedPreconditionError(
            f"{_refusal(whose, found, differs)}, and may not be changed from here ({error}): ask "
            "for what is there, or let somebody change it who may"
        ) from error


def _refusal(whose: str, found: Config, differs: dict[str, Any]) -> str:
    return f"{whose} exists and is not as asked for: {differences(found, differs)}"


def differences(found: Config, wanted: Mapping[str, Any]) -> str:
    """What is not as wanted, in words; "" when all is."""
    return "; ".join(
        f"{option} is {getattr(found, option)!r}, not {value!r}"
        for option, value in wanted.items()
        if getattr(found, option) != value
    )


def _changed(found: Config, differs: dict[str, Any]) -> str:
    return "; ".join(
        f"{option} was {getattr(found, option)!r}, is {value!r}"
        for option, value in differs.items()
    )
