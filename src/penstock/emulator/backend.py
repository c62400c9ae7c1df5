"""What every service stands on: the broker, and what Google knows beside it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock.broker import Broker
from penstock.clock import Clock
from penstock.config import SubscriptionConfig
from penstock.emulator.completing.passing import PassingOn
from penstock.emulator.receiving.acks import AckIds
from penstock.emulator.receiving.desks import Desk
from penstock.emulator.receiving.returns import Returns
from penstock.emulator.store import Store
from penstock.googlepubsub.names import Names


class Backend:
    def __init__(self, broker: Broker, names: Names, store: Store, clock: Clock) -> None:
        self.broker = broker
        self.admin = broker.admin
        self.names = names
        self.store = store
        self.clock = clock
        # Ack ids of a durable broker outlive us; those of others must not meet later ones.
        self.ack_ids = AckIds("" if broker.capabilities.durable else secrets.token_hex(8))
        self.desks: dict[str, Desk] = {}
        self.returns = Returns(broker)
        self._configs: dict[str, SubscriptionConfig] = {}
        self.changing = asyncio.Lock()
        """Held while something is created or changed: looking and doing are one step."""

    async def config_of(self, subscription: str) -> SubscriptionConfig:
        """Remembered: every pull and every failed ack asks."""
        known = self._configs.get(subscription)
        if known is None:
            known = (await self.admin.describe_subscription(subscription)).config
            self._configs[subscription] = known
        return known

    def subscription_changed(self, name: str, config: SubscriptionConfig | None) -> None:
        """It is `config` from now on, or gone."""
        self._configs.pop(name, None)
        if config is None:
            self.loans_ended(name)
            self.desks.pop(name, None)
        elif name in self.desks:
            self.desks[name].config = config

    def loans_ended(self, subscription: str) -> None:
        """Nothing that was lent of it is anybody's any more."""
        if subscription in self.desks:
            self.desks[subscription].all_ended()
        if isinstance(self.broker, PassingOn):
            self.broker.forget(subscription)

    def kept(self, kind: type[Any], resource: str) -> Any:
        """What is kept of a resource beside the broker; empty when nothing is."""
        return kind.FromString(self.store.get(resource) or b"")

    def keep(self, resource: str, message: Any) -> None:
        self.store.put(resource, message.SerializeToString(deterministic=True))

    @asynccontextmanager
    async def creating(self, resource: str, message: Any) -> AsyncIterator[None]:
        """Keep what is beside the broker first: what is created is then complete, whenever we
        end. What is not created leaves nothing."""
        self.keep(resource, message)
        try:
            yield
        except BaseException:
            self.store.drop(resource)
            raise

    def forget(self, resource: str) -> None:
        """A resource is gone, and who may do what with it."""
        self.store.drop(resource, policy_key(resource))


def policy_key(resource: str) -> str:
    return f"policy:{resource}"
