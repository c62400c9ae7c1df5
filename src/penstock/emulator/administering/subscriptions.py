"""google.pubsub.v1.Subscriber, as operators use it: subscriptions come, change and go."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

from penstock.broker import SubscriptionStatus
from penstock.capabilities import update_subscription
from penstock.config import TopicConfig
from penstock.emulator.administering.pages import page_of_project
from penstock.emulator.administering.resources import merged, subscription_of
from penstock.emulator.backend import Backend
from penstock.emulator.refusals import already_exists
from penstock.errors import AlreadyExistsError, NotFoundError
from penstock.googlepubsub.messages import Empty, FieldMask, Subscription, message
from penstock.googlepubsub.names import SUBSCRIPTIONS
from penstock.googlepubsub.resources import read_subscription
from penstock.rules.filters import parse_filter

_Listed = message("ListSubscriptionsResponse")


class Push(Protocol):
    """Whoever sends messages to the endpoints of push subscriptions."""

    async def check(self, push_config: Any) -> None:
        """Refuse what cannot be pushed to."""

    async def follow(self, subscription: str, push_config: Any) -> None:
        """From now on, push as this says; without an endpoint, not at all."""


class Subscriptions:
    def __init__(self, backend: Backend, push: Push) -> None:
        self._backend = backend
        self._admin = backend.admin
        self._names = backend.names
        self._push = push

    async def create_subscription(self, subscription: Any) -> Any:
        config = read_subscription(subscription, self._names)
        if config.filter:
            parse_filter(config.filter)
        await self._push.check(subscription.push_config)
        async with self._backend.changing:
            if await self._exists(config.name):
                raise AlreadyExistsError(already_exists(subscription.name.rpartition("/")[2]))
            async with self._backend.creating(subscription.name, subscription):
                await self._admin.create_subscription(config)
        await self._push.follow(config.name, subscription.push_config)
        return await self._described(config.name)

    async def get_subscription(self, request: Any) -> Any:
        return await self._described(self._name(request))

    async def update_subscription(self, request: Any) -> Any:
        name = self._names.of(SUBSCRIPTIONS, request.subscription.name, "subscription.name")
        return await self._update(name, request.subscription, request.update_mask)

    async def modify_push_config(self, request: Any) -> Any:
        wanted = Subscription(push_config=request.push_config)
        mask = FieldMask(paths=["push_config"])
        await self._update(self._name(request), wanted, mask)
        return Empty()

    async def _update(self, name: str, wanted: Any, mask: Any) -> Any:
        async with self._backend.changing:
            status = await self._admin.describe_subscription(name)
            subscription = merged(await self._of(status), wanted, mask)
            config = read_subscription(subscription, self._names, status.config)
            await self._push.check(subscription.push_config)
            if config != status.config:
                await update_subscription(self._backend.broker, config)
                self._backend.subscription_changed(name, config)
            self._backend.keep(subscription.name, subscription)
            await self._push.follow(name, subscription.push_config)
            return await self._described(name)

    async def list_subscriptions(self, request: Any) -> Any:
        known = await self._admin.list_subscriptions()
        found, token = await page_of_project(request, self._names, known, self._described)
        return _Listed(subscriptions=found, next_page_token=token)

    async def delete_subscription(self, request: Any) -> Any:
        name = self._name(request)
        await self._admin.delete_subscription(name)
        self._backend.subscription_changed(name, None)
        self._backend.forget(request.subscription)
        await self._push.follow(name, None)
        return Empty()

    def _name(self, request: Any) -> str:
        return self._names.of(SUBSCRIPTIONS, request.subscription, "subscription")

    async def _exists(self, name: str) -> bool:
        try:
            await self._admin.describe_subscription(name)
        except NotFoundError:
            return False
        return True

    async def _described(self, name: str) -> Any:
        return await self._of(await self._admin.describe_subscription(name))

    async def _of(self, status: SubscriptionStatus) -> Any:
        resource = self._names.resource(SUBSCRIPTIONS, status.config.name)
        kept = self._backend.kept(Subscription, resource)
        return subscription_of(status, kept, self._names, await self._topic(status))

    async def _topic(self, status: SubscriptionStatus) -> TopicConfig | None:
        if not status.topic_deleted:
            with suppress(NotFoundError):
                return (await self._admin.describe_topic(status.config.topic)).config
        return None
