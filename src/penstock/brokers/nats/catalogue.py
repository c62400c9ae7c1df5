"""Where topics and subscriptions are on the server: finds them, and remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.brokers.nats.aio.connection import Connection
from penstock.brokers.nats.protocol.configuration import (
    REPLICAS,
    Consumer,
    assumed_consumer,
    consumer_of,
    topic_config,
)
from penstock.brokers.nats.protocol.errors import NotClusteredError
from penstock.brokers.nats.protocol.headers import encode_name
from penstock.errors import PermissionDeniedError, SubscriptionNotFoundError, TopicNotFoundError


class Routes(msgspec.Struct, frozen=True):
    """Where a topic's messages go: by their attributes, and on which subjects if not its own."""

    routed: tuple[str, ...]
    subjects: tuple[str, ...]


class Catalogue:
    """Finds streams and consumers, and remembers where they are."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._consumers: dict[str, Consumer] = {}
        self._routes: dict[str, Routes] = {}
        self._asking: dict[str, asyncio.Task[Routes]] = {}
        self.on_forget: Callable[[str], object] = lambda _: None

    async def routes(self, topic: str) -> Routes:
        """How a topic routes. A user who may not ask publishes without routed attributes, which
        costs filtering on the server and nothing else, and on any subject."""
        known = self._routes.get(topic)
        if known is None:
            asking = self._asking.get(topic)
            if asking is None:
                # One question for all who wait, so that none overtakes another. Owned here, and
                # ends with its answer: whoever asked first may not live to hear it.
                asking = asyncio.get_running_loop().create_task(self._ask_routes(topic))
                self._asking[topic] = asking
                asking.add_done_callback(lambda task: self._asked(topic, task))
            known = await asyncio.shield(asking)
        return known

    async def _ask_routes(self, topic: str) -> Routes:
        try:
            config = topic_config(await self.stream_info(topic))
            known = Routes(config.routed_attributes, config.subjects)
        except PermissionDeniedError:
            known = Routes((), (">",))
        self._routes[topic] = known
        return known

    def _asked(self, topic: str, asking: asyncio.Task[Routes]) -> None:
        del self._asking[topic]
        if not asking.cancelled():
            asking.exception()  # Seen: whoever still waits is told.

    def forget_routes(self, topic: str) -> None:
        self._routes.pop(topic, None)

    async def consumer(self, subscription: str) -> Consumer:
        known = self._consumers.get(subscription)
        if known is None:
            try:
                known = consumer_of(await self.consumer_info(subscription))
            except PermissionDeniedError:
                # Pulling needs no more than the name of the stream, if the address tells it.
                if not self._connection.options.topics:
                    raise
                known = assumed_consumer(self._connection.options.topics[0], subscription)
            self._consumers[subscription] = known
        return known

    def forget(self, subscription: str) -> None:
        self._consumers.pop(subscription, None)
        self.on_forget(subscription)

    def remember(self, subscription: str, info: dict[str, Any]) -> None:
        self.forget(subscription)
        self._consumers[subscription] = consumer_of(info)

    async def consumer_info(self, subscription: str) -> dict[str, Any]:
        """The server's own description; looks through the topics for it."""
        known = self._consumers.get(subscription)
        name = encode_name(subscription)
        streams = [known.stream] if known is not None else await self.streams()
        for stream in streams:
            try:
                return await self._connection.request(
                    f"CONSUMER.INFO.{stream}.{name}",
                    missing=lambda: SubscriptionNotFoundError(subscription),
                )
            except SubscriptionNotFoundError:
                continue
        self.forget(subscription)
        raise SubscriptionNotFoundError(subscription)

    async def stream_info(self, topic: str) -> dict[str, Any]:
        return await self._connection.request(
            f"STREAM.INFO.{encode_name(topic)}", missing=lambda: TopicNotFoundError(topic)
        )

    async def create_stream(self, config: dict[str, Any]) -> None:
        """As asked for; where nobody asked for replicas, with as many as are of use, if any."""
        if "num_replicas" in config:
            return await self._create(config)
        try:
            await self._create({**config, "num_replicas": REPLICAS})
        except NotClusteredError:
            await self._create({**config, "num_replicas": 1})

    async def _create(self, config: dict[str, Any]) -> None:
        await self._connection.request(f"STREAM.CREATE.{config['name']}", config)

    async def streams(self) -> list[str]:
        """Where to look for subscriptions: in all streams, or in those the address names."""
        if self._connection.options.topics:
            return [encode_name(topic) for topic in self._connection.options.topics]
        return await self.all_streams()

    async def all_streams(self) -> list[str]:
        return await self._all("STREAM.NAMES", "streams")

    async def consumers(self, stream: str) -> list[str]:
        return await self._all(f"CONSUMER.NAMES.{stream}", "consumers")

    async def _all(self, subject: str, field: str) -> list[str]:
        found: list[str] = []
        while True:
            page = await self._connection.request(subject, {"offset": len(found)})
            found += page.get(field) or []
            if not page.get(field) or len(found) >= page["total"]:
                return found
