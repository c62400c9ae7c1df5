"""Topics and subscriptions an app needs: made when missing, or only looked for."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.broker import Broker
from penstock.capabilities import release_counts_of
from penstock.client import PubSub
from penstock.config import DAY, SubscriptionConfig
from penstock.consuming.declaration import Provision, Subscriber
from penstock.ensuring import differences, ensure_subscription
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    NotFoundError,
    PermissionDeniedError,
)
from penstock.subscribing import Subscription

_log = logging.getLogger("penstock.app")

# Long enough to come back from a holiday and find them.
DEAD_LETTERS_KEPT = 14 * DAY

Needs = Mapping[str, Mapping[str, Any]]
"""Topics by name, each with the options to create it with."""


class Provisioning:
    """Sees to it that everything is there before the first message is asked for."""

    def __init__(self, pubsub: PubSub, broker: Broker, provision: Provision) -> None:
        self._pubsub = pubsub
        self._broker = broker
        self._provision = provision

    def keep_for(self, seconds: float) -> dict[str, float]:
        """Options of a topic whose messages are to be kept, where a broker can look back."""
        can_look_back = self._broker.capabilities.replay or self._broker.capabilities.seek
        return {"message_retention": seconds} if can_look_back else {}

    def tell_of_repeats(self, subscriber: Subscriber) -> None:
        """What a broker does not promise about what a handler publishes."""
        if subscriber.publications and not self._broker.capabilities.dedupe:
            _log.warning(
                "What %s publishes is stored again when its message is delivered again: the %s "
                "broker does not claim 'dedupe', so let whoever receives it drop what it has seen",
                *(subscriber.where, self._broker.name),
            )

    async def releases(self, subscriber: Subscriber) -> None:
        """So that what nobody saw costs no attempt, where the broker counts it."""
        releases = release_counts_of(self._broker)
        if releases is None or subscriber.max_attempts is None:
            return
        try:
            await releases.note_releases(subscriber.subscription)
        except PermissionDeniedError as error:
            _log.warning(
                "What %r gives back unseen counts as an attempt, since it may not be noted: %s",
                *(subscriber.subscription, error),
            )

    async def topics(self, needs: Needs, whose: Mapping[str, str]) -> None:
        """`whose`: the function that names each, for errors."""
        if self._provision == "ensure":
            for name, options in needs.items():
                await self._ensure_topic(name, options)
            return
        missing = [name for name in needs if not await self._pubsub.topic(name).exists()]
        _complain("Topic", missing, whose)

    async def subscription(
        self, subscription: Subscription, whose: str, asked: Collection[str]
    ) -> None:
        """`whose`: the function that takes its messages, for errors. `asked`: what it says of its
        subscription itself, which one that exists is changed to."""
        # Looked for first: creating what is there may disturb it.
        if self._provision == "ensure" and not await subscription.exists():
            try:
                await subscription.create()
                return
            except AlreadyExistsError:
                _log.debug("Subscription %r was made by somebody else", subscription.name)
        try:
            found = (await subscription.describe()).config
        except NotFoundError:
            _complain("Subscription", [subscription.name], {subscription.name: whose})
        else:
            _check_topic(subscription, found, whose)
            differs = differences(found, subscription.config_given)
            if differs:
                what = await self._change(subscription, found, asked)
                _log.warning(
                    "Subscription %r exists and is not as %s declares it: %s; %s",
                    *(subscription.name, whose, differs, what),
                )

    async def _change(
        self, subscription: Subscription, found: SubscriptionConfig, asked: Collection[str]
    ) -> str:
        """Make it what was asked for, where that can be; returns what became of it."""
        if self._provision == "check":
            return "it is used as it is, since provision='check' changes nothing"
        wanted = {
            option: value
            for option, value in subscription.config_given.items()
            if option in asked and getattr(found, option) != value
        }
        if not wanted:
            return "it is used as it is, since no handler says so itself"
        try:
            changed = await ensure_subscription(self._broker, replace(found, **wanted), wanted)
        except FailedPreconditionError as error:
            return f"it is used as it is. {error}"
        return f"it is changed, and keeps what waits: {changed}"

    async def _ensure_topic(self, name: str, options: Mapping[str, Any]) -> None:
        topic = self._pubsub.topic(name)
        if await topic.exists():
            return
        try:
            await topic.create(**options)
        except AlreadyExistsError:
            _log.debug("Topic %r was made by somebody else meanwhile", name)


def _check_topic(wanted: Subscription, found: SubscriptionConfig, whose: str) -> None:
    if found.topic != wanted.topic:
        raise FailedPreconditionError(
            f"Subscription {wanted.name!r} of {whose} exists on topic {found.topic!r}, not on "
            f"{wanted.topic!r}; choose another name, or delete it first"
        )


def _complain(kind: str, missing: list[str], whose: Mapping[str, str]) -> None:
    if missing:
        told = "\n".join(f"  {name!r}, for {whose.get(name, 'the app')}" for name in missing)
        raise NotFoundError(
            f"{kind}s that are not there, and provision='check' makes none:\n{told}\n"
            "Make them first, or let the app do it with App(provision='ensure')"
        )
