"""Where topics and subscriptions are on the server: finds them, and remembers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from penstock.brokers.nats.aio.connection import Connection
from penstock.brokers.nats.aio.line import Line
from penstock.brokers.nats.protocol.configuration import REPLICAS, topic_config
from penstock.brokers.nats.protocol.consumers import Consumer, assumed_consumer, consumer_of
from penstock.brokers.nats.protocol.errors import NotClusteredError
from penstock.brokers.nats.protocol.headers import NOTHING, encode_name
from penstock.config import SubscriptionName
from penstock.errors import (
    FailedPreconditionError,
    PenstockError,
    PermissionDeniedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)

# Who receives follows what somebody else changes of a subscription: it is looked at so often.
_LOOK_AGAIN_AFTER = 5.0
# Questions under way at once, when all streams are asked for a consumer.
_AT_ONCE = 64


class Routes(msgspec.Struct, frozen=True):
    """Where a topic's messages go: by their attributes, and on which subjects if not its own.
    `alone`: to a server that is in no cluster."""

    routed: tuple[str, ...]
    subjects: tuple[str, ...]
    alone: bool = False


class Catalogue:
    """Finds streams and consumers, and remembers where they are.

    A consumer's name is unique in its stream. So a subscription is looked for in its topic, and
    where none was named in all of them: then it must be the only one.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._consumers: dict[tuple[str, str], Consumer] = {}
        # By stream and name, however it is asked for.
        self._looked: dict[tuple[str, str], float] = {}
        self._looking: set[asyncio.Task[None]] = set()
        self._routes: dict[str, Routes] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._lines: defaultdict[str, Line[Routes]] = defaultdict(Line)
        self._asked_at: dict[str, float] = {}
        self.on_forget: Callable[[Consumer], object] = lambda _: None
        self.on_change: Callable[[Consumer, Consumer], object] = lambda _before, _now: None

    def known_routes(self, topic: str) -> Routes | None:
        """What `routes` would answer at once; None when it would do more than that."""
        known = self._routes.get(topic)
        if known is None or known.routed:
            return None
        line = self._lines.get(topic)
        return None if line is not None and line.standing else known

    async def routes(self, topic: str) -> Routes:
        """How a topic routes, told to those who ask in the order in which they do. A user who may
        not ask publishes without routed attributes, which costs filtering on the server and
        nothing else, and on any subject."""
        known = self._routes.get(topic)
        if known is None:
            self._ask_for(topic)
            return await self._lines[topic].wait()
        if known.routed and _now() - self._asked_at[topic] >= _LOOK_AGAIN_AFTER:
            # In passing: somebody may have made it again, to be routed otherwise, and messages in
            # other places than subscriptions look for them would be missed.
            self._ask_for(topic)
        line = self._lines[topic]
        return await line.follow(known) if line else known

    def _ask_for(self, topic: str) -> None:
        """One question for all who wait."""
        if topic not in self._asking:
            # Owned here, and ends with its answer: whoever asked first may not live to hear it.
            self._asking[topic] = asyncio.get_running_loop().create_task(self._ask_routes(topic))
            self._asked_at[topic] = _now()

    async def routes_again(self, topic: str) -> Routes:
        """As the server says now."""
        self.forget_routes(topic)
        return await self.routes(topic)

    async def _ask_routes(self, topic: str) -> None:
        line = self._lines[topic]
        try:
            known = self._routes[topic] = await self._routes_now(topic)
            line.tell(known)
        except BaseException as error:
            line.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            del self._asking[topic]

    async def _routes_now(self, topic: str) -> Routes:
        try:
            info = await self.stream_info(topic)
        except PermissionDeniedError:
            return Routes((), (">",))
        config = topic_config(info)
        subjects = config.subjects if info["config"].get("subjects") else NOTHING
        alone = not (info.get("cluster") or {}).get("name")
        return Routes(config.routed_attributes, subjects, alone)

    def forget_routes(self, topic: str) -> None:
        self._routes.pop(topic, None)

    # Subscriptions.

    async def consumer(self, subscription: str) -> Consumer:
        asked = _asked_for(subscription)
        known = self._consumers.get(asked)
        if known is None:
            try:
                known = _usable(consumer_of(await self._find(*asked)))
                self._looked[known.key] = _now()
            except PermissionDeniedError:
                # Pulling needs no more than the name of the stream, if somebody tells it.
                topic = asked[1] or next(iter(self._connection.options.topics), "")
                if not topic:
                    raise
                known = assumed_consumer(topic, asked[0])
            # By its full address as well: that is how it is asked for once it is found.
            self._consumers[known.config.name, known.config.topic] = known
            self._consumers[asked] = known
        return known

    def known(self, subscription: str) -> Consumer | None:
        """The same, if it was found before."""
        return self._consumers.get(_asked_for(subscription))

    async def consumer_info(self, subscription: str) -> dict[str, Any]:
        """The server's own description; looks for it where it may be."""
        asked = _asked_for(subscription)
        known = self._consumers.get(asked)
        return await (self._find(*asked) if known is None else self.info(known))

    async def info(self, consumer: Consumer) -> dict[str, Any]:
        """What the server says now of a consumer that was found before."""
        try:
            return await self._ask(consumer.stream, consumer.name, consumer.config.name)
        except SubscriptionNotFoundError:
            self.forget(consumer)
            raise

    async def _find(self, name: str, topic: str) -> dict[str, Any]:
        streams = [encode_name(topic)] if topic else await self.streams()
        found: list[dict[str, Any]] = []
        denied: PermissionDeniedError | None = None
        for at in range(0, len(streams), _AT_ONCE):
            questions = (
                self._ask(stream, encode_name(name), name) for stream in streams[at : at + _AT_ONCE]
            )
            for answer in await asyncio.gather(*questions, return_exceptions=True):
                if isinstance(answer, PermissionDeniedError):
                    denied = answer
                elif isinstance(answer, dict):
                    found.append(answer)
                elif not isinstance(answer, SubscriptionNotFoundError):
                    raise answer
        if len(found) == 1:
            return found[0]
        if found:
            raise _ambiguous(name, [info["stream_name"] for info in found])
        raise denied or _missing(name, topic)

    async def _ask(self, stream: str, consumer: str, name: str) -> dict[str, Any]:
        return await self._connection.request(
            f"CONSUMER.INFO.{stream}.{consumer}", missing=lambda: SubscriptionNotFoundError(name)
        )

    def forget(self, consumer: Consumer) -> None:
        """It is gone, or what was lent of it is nobody's any more."""
        for asked in [a for a, known in self._consumers.items() if known.key == consumer.key]:
            del self._consumers[asked]
        self._looked.pop(consumer.key, None)
        self.on_forget(consumer)

    def remember(self, info: dict[str, Any]) -> None:
        """It has just been made."""
        consumer = consumer_of(info)
        self.forget(consumer)
        self._consumers[consumer.config.name, consumer.config.topic] = consumer
        self._looked[consumer.key] = _now()

    def changed(self, info: dict[str, Any]) -> None:
        """It is configured like this from now on; what is on loan stays so."""
        consumer = consumer_of(info)
        known = [a for a, other in self._consumers.items() if other.key == consumer.key]
        before = next((o for a in known if (o := self._consumers[a]) != consumer), None)
        if before is not None:
            self._consumers.update(dict.fromkeys(known, consumer))
            self.on_change(before, consumer)

    def latest(self, consumer: Consumer) -> Consumer:
        """As it is known to be by now."""
        known = self._consumers.get((consumer.config.name, consumer.config.topic), consumer)
        return known if known is consumer or known.key == consumer.key else consumer

    def look_again(self, subscription: str) -> None:
        """Find out in passing whether somebody has changed a subscription that is in use."""
        consumer = self._consumers.get(_asked_for(subscription))
        if consumer is not None:
            self.look_again_at(consumer)

    def look_again_at(self, consumer: Consumer) -> None:
        now = _now()
        # Who may not look at it never did.
        if now - self._looked.get(consumer.key, now) < _LOOK_AGAIN_AFTER:
            return
        self._looked[consumer.key] = now
        # Owned here: ends with its answer, or in `close`.
        looking = asyncio.get_running_loop().create_task(self._look(consumer))
        self._looking.add(looking)
        looking.add_done_callback(self._looking.discard)

    async def _look(self, consumer: Consumer) -> None:
        with suppress(PenstockError):
            self.changed(await self._ask(consumer.stream, consumer.name, consumer.config.name))

    async def close(self) -> None:
        for looking in self._looking:
            looking.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)

    # Streams.

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

    async def all_streams(self, subject: str = "") -> list[str]:
        """Those that store something on `subject`, which may be a pattern, or all."""
        about = {"subject": subject} if subject else {}
        return await self._all("STREAM.NAMES", "streams", about)

    async def consumers(self, stream: str) -> list[str]:
        return await self._all(f"CONSUMER.NAMES.{stream}", "consumers")

    async def _all(
        self, subject: str, field: str, about: Mapping[str, str] | None = None
    ) -> list[str]:
        found: list[str] = []
        while True:
            page = await self._connection.request(subject, {**(about or {}), "offset": len(found)})
            found += page.get(field) or []
            if not page.get(field) or len(found) >= page["total"]:
                return found


def _now() -> float:
    return asyncio.get_running_loop().time()


def _asked_for(subscription: str) -> tuple[str, str]:
    """A subscription's name, and its topic if that was said."""
    if isinstance(subscription, SubscriptionName):
        return subscription.name, subscription.topic
    return subscription, ""


def _missing(name: str, topic: str) -> SubscriptionNotFoundError:
    if not topic:
        return SubscriptionNotFoundError(name)
    return SubscriptionNotFoundError(
        name, f"topic {topic!r} has none of this name; create it with `await subscription.create()`"
    )


def _usable(consumer: Consumer) -> Consumer:
    if consumer.acks_all_before:
        raise FailedPreconditionError(
            f"Subscription {consumer.config.name!r} of topic {consumer.config.topic!r} takes an "
            "ack for all messages before it (ack_policy 'all'), also for those that are not done; "
            "receive from one with ack_policy 'explicit'"
        )
    return consumer


def _ambiguous(name: str, streams: list[str]) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"There are several subscriptions {name!r}, in {', '.join(sorted(streams))}; say in which "
        f"topic: pubsub.subscription({name!r}, topic=…)"
    )
