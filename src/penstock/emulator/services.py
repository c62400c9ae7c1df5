"""Every call and who serves it, however it came in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.broker import Broker
from penstock.clock import Clock
from penstock.emulator.administering.iam import IamPolicy
from penstock.emulator.administering.snapshots import Snapshots
from penstock.emulator.administering.subscriptions import Subscriptions
from penstock.emulator.backend import Backend
from penstock.emulator.publisher import Publisher
from penstock.emulator.pushing.pushers import Pushers
from penstock.emulator.pushing.tokens import Tokens
from penstock.emulator.receiving.service import Receiving
from penstock.emulator.schemas.definitions import Definitions
from penstock.emulator.schemas.revisions import Revisions
from penstock.emulator.schemas.service import SchemaService
from penstock.emulator.schemas.topics import TopicSchemas
from penstock.emulator.store import Store
from penstock.errors import FailedPreconditionError
from penstock.googlepubsub.calls import IAM, PUBLISHER, RPCS, SCHEMAS, SUBSCRIBER
from penstock.googlepubsub.messages import Topic
from penstock.googlepubsub.names import Names

Serve = Callable[..., Awaitable[Any]]


class Services:
    """`serve` finds the function of a call by its name. Unary ones take a request; what waits takes
    the seconds that are left, too; streams take requests and a context."""

    def __init__(self, broker: Broker, names: Names, store: Store, clock: Clock) -> None:
        self._backend = Backend(broker, names, store, clock)
        self.tokens = Tokens(clock)
        self.pushers = Pushers(self._backend, self.tokens)
        by_service = self._objects()
        self.serve: dict[str, Serve] = {}
        for rpc in RPCS:
            [self.serve[rpc.name]] = [
                getattr(one, rpc.method)
                for one in by_service[rpc.service]
                if hasattr(one, rpc.method)
            ]

    def _objects(self) -> dict[str, tuple[object, ...]]:
        backend, definitions = self._backend, Definitions()
        revisions = Revisions(backend.store, backend.names, backend.clock)

        def settings_of(topic: str) -> Any:
            kept = backend.kept(Topic, topic)
            return kept.schema_settings if kept.HasField("schema_settings") else None

        return {
            PUBLISHER: (Publisher(backend, TopicSchemas(revisions, definitions, settings_of)),),
            SUBSCRIBER: (
                Subscriptions(backend, self.pushers),
                Receiving(backend, self.pushers.is_pushed),
                Snapshots(backend),
            ),
            SCHEMAS: (SchemaService(backend, revisions, definitions),),
            IAM: (IamPolicy(backend, revisions),),
        }

    async def aclose(self) -> None:
        """Once nobody is served any more."""
        await self._backend.returns.settled()
        await self.pushers.aclose()
        self._backend.store.close()

    async def reset(self) -> None:
        """As if it had just been started with nothing. What is durable may be other people's, too:
        it is deleted by name only."""
        if self._backend.broker.capabilities.durable:
            raise FailedPreconditionError(
                "What this emulator serves is durable, and is not forgotten as a whole: delete its "
                "topics and subscriptions by name, or serve another folder"
            )
        admin = self._backend.admin
        for subscription in await admin.list_subscriptions():
            await self.pushers.follow(subscription, None)
            await admin.delete_subscription(subscription)
            self._backend.subscription_changed(subscription, None)
        for snapshot in await admin.list_snapshots():
            await admin.delete_snapshot(snapshot)
        for topic in await admin.list_topics():
            await admin.delete_topic(topic)
        self._backend.store.clear()
