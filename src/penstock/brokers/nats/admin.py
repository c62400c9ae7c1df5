"""What operators do to JetStream. Nothing is changed that was not asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Any

from penstock.broker import SnapshotStatus, SubscriptionStatus, TopicStatus, Unsettled, Usage
from penstock.brokers.nats import snapshots
from penstock.brokers.nats.aio.connection import Connection
from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.dead_letters import ADVISORIES, DeadLetterMover
from penstock.brokers.nats.log import NatsLog
from penstock.brokers.nats.protocol.configuration import (
    stream_config,
    topic_config,
    updated_stream,
)
from penstock.brokers.nats.protocol.consumers import (
    Consumer,
    consumer_config,
    consumer_of,
    finished_consumer,
    seen_subjects,
    unfinished,
    updated_consumer,
)
from penstock.brokers.nats.protocol.errors import SubjectsTakenError
from penstock.brokers.nats.protocol.headers import encode_name, own_name, stores
from penstock.brokers.nats.releases import RELEASES, Releases
from penstock.clock import NS, Clock, to_ns
from penstock.config import SubscriptionConfig, SubscriptionName, TopicConfig
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnimplementedError,
)
from penstock.rules.filters import parse_filter

_OWN = (ADVISORIES, RELEASES, snapshots.STREAM)


class NatsAdmin:
    def __init__(
        self,
        connection: Connection,
        catalogue: Catalogue,
        log: NatsLog,
        mover: DeadLetterMover,
        releases: Releases,
        kept: snapshots.Snapshots,
        clock: Clock,
    ) -> None:
        self._snapshots = kept
        self._mover = mover
        self._releases = releases
        self._connection = connection
        self._catalogue = catalogue
        self._log = log
        self._clock = clock

    async def create_topic(self, config: TopicConfig) -> None:
        if encode_name(config.name) in _OWN:
            raise InvalidArgumentError(f"Topic {config.name!r} is Penstock's own; choose another")
        # The server takes the same configuration twice without a word; users are to be told.
        if await self._exists(config.name):
            raise _exists("Topic", config.name)
        wanted = stream_config(config)
        with _about("Topic", config.name):
            async with self._subjects_free(wanted["subjects"]):
                await self._catalogue.create_stream(wanted)

    async def delete_topic(self, topic: str) -> None:
        self._catalogue.forget_routes(topic)
        await self._connection.request(
            f"STREAM.DELETE.{encode_name(topic)}", missing=lambda: TopicNotFoundError(topic)
        )

    async def update_topic(self, config: TopicConfig) -> None:
        info = await self._catalogue.stream_info(config.name)
        topic_config(info).check_change(config)
        wanted = updated_stream(info, config)
        self._catalogue.forget_routes(config.name)
        with _about("Topic", config.name):
            async with self._subjects_free(wanted.get("subjects") or []):
                await self._connection.request(
                    f"STREAM.UPDATE.{encode_name(config.name)}",
                    wanted,
                    missing=lambda: TopicNotFoundError(config.name),
                )

    @asynccontextmanager
    async def _subjects_free(self, subjects: Sequence[str]) -> AsyncIterator[None]:
        """Say who has the subjects when the server says that somebody has."""
        try:
            yield
        except SubjectsTakenError as taken:
            others: set[str] = set()
            with suppress(PermissionDeniedError):
                for subject in subjects:
                    others.update(map(own_name, await self._catalogue.all_streams(subject)))
            whose = " and ".join(map(repr, sorted(others))) or "another"
            raise FailedPreconditionError(
                f"of {', '.join(subjects)} some are stored by topic {whose}; choose another name "
                "or other subjects, or publish to that one"
            ) from taken

    async def list_topics(self) -> Sequence[str]:
        streams = await self._catalogue.all_streams()
        return sorted(own_name(name) for name in streams if name not in _OWN)

    async def describe_topic(self, topic: str) -> TopicStatus:
        info = await self._catalogue.stream_info(topic)
        names = await self._catalogue.consumers(encode_name(topic))
        return TopicStatus(
            config=topic_config(info),
            subscriptions=tuple(sorted(own_name(name) for name in names)),
            published=info["state"]["last_seq"],
        )

    async def create_subscription(self, config: SubscriptionConfig) -> None:
        if config.filter:
            parse_filter(config.filter)
        topic = await self._catalogue.stream_info(config.topic)
        if config.dead_letter_policy is not None:
            await self._check_takes_letters(config.dead_letter_policy.topic)
        try:
            existing = await self._catalogue.consumer_info(config.address)
        except SubscriptionNotFoundError:
            about = topic_config(topic)
            first = 1 if about.work_queue else topic["state"]["last_seq"] + 1
            await self._create_consumer(config, about.routed_attributes, first)
        else:
            begins = unfinished(existing)
            if begins is None:
                raise _exists("Subscription", config.name)
            # Whoever created it lost the connection half-way.
            await self._finish_consumer(consumer_of(existing), begins)

    async def _create_consumer(
        self, config: SubscriptionConfig, routed: tuple[str, ...], first: int
    ) -> None:
        """A consumer that begins at sequence `first` and can be moved back later.

        A consumer created to see only what is new cannot be moved, so it is created to see
        everything and moved to where it should begin before anybody pulls.
        """
        stream, name = encode_name(config.topic), encode_name(config.name)
        with _about("Subscription", config.name):
            info = await self._connection.request(
                f"CONSUMER.CREATE.{stream}.{name}",
                {
                    "stream_name": stream,
                    "action": "create",
                    "config": consumer_config(config, routed, first),
                },
                missing=lambda: TopicNotFoundError(config.topic),
            )
        await self._forget_former(consumer_of(info))
        await self._finish_consumer(consumer_of(info), first)
        self._catalogue.remember(info)

    async def _forget_former(self, consumer: Consumer) -> None:
        """One of its name may have gone with its topic. What is known of its messages is about
        others, which have their sequences now."""
        await self._releases.forget(consumer)
        if consumer.config.dead_letter_policy is not None:
            await self._mover.forget(consumer)

    async def _finish_consumer(self, consumer: Consumer, first: int) -> None:
        """Advisories first: moving it is what says that it is complete."""
        if consumer.config.dead_letter_policy is not None:
            await self._mover.prepare(consumer)
            await self._releases.prepare()
        if first > 1:
            await self._reset(consumer, first)

    async def _reset(self, consumer: Consumer, sequence: int) -> None:
        await self._connection.request(
            f"CONSUMER.RESET.{consumer.stream}.{consumer.name}",
            {"seq": sequence},
            missing=lambda: SubscriptionNotFoundError(consumer.config.name),
            unanswered=lambda: UnimplementedError(
                "This NATS server cannot move consumers; version 2.14 or newer can"
            ),
        )

    async def update_subscription(self, config: SubscriptionConfig) -> None:
        info = await self._catalogue.consumer_info(config.address)
        consumer = consumer_of(info)
        consumer.config.check_change(config, filter_too=True)
        routed = topic_config(await self._catalogue.stream_info(config.topic)).routed_attributes
        if config.dead_letter_policy is not None:
            await self._check_takes_letters(config.dead_letter_policy.topic)
            await self._mover.prepare(consumer)
            await self._releases.prepare()
        updated = await self._update(consumer, updated_consumer(info, config, routed))
        self._catalogue.changed(updated)
        if config.dead_letter_policy is None and consumer.config.dead_letter_policy is not None:
            await self._mover.forget(consumer)
            await self._releases.forget(consumer)

    async def _update(self, consumer: Consumer, config: dict[str, Any]) -> dict[str, Any]:
        with _about("Subscription", consumer.config.name):
            return await self._connection.request(
                f"CONSUMER.CREATE.{consumer.stream}.{consumer.name}",
                {"stream_name": consumer.stream, "action": "update", "config": config},
                missing=lambda: SubscriptionNotFoundError(consumer.config.name),
            )

    async def detach_subscription(self, subscription: str) -> None:  # noqa: ARG002
        raise UnimplementedError("JetStream cannot detach a subscription; delete it instead")

    async def delete_subscription(self, subscription: str) -> None:
        consumer = await self._catalogue.consumer(subscription)
        self._catalogue.forget(consumer)
        await self._connection.request(
            f"CONSUMER.DELETE.{consumer.stream}.{consumer.name}",
            missing=lambda: SubscriptionNotFoundError(subscription),
        )
        if consumer.config.dead_letter_policy is not None:
            await self._mover.forget(consumer)
        await self._releases.forget(consumer)

    async def list_subscriptions(self, topic: str | None = None) -> Sequence[str]:
        if topic is not None:
            return (await self.describe_topic(topic)).subscriptions
        found: list[SubscriptionName] = []
        for stream in await self._catalogue.streams():
            if stream not in _OWN:
                with suppress(NotFoundError):  # deleted meanwhile, and its subscriptions with it
                    names = await self._catalogue.consumers(stream)
                    found += [SubscriptionName(own_name(name), own_name(stream)) for name in names]
        several = {name for name, count in Counter(found).items() if count > 1}
        # Those that one topic alone has need no topic to be found.
        return sorted(one if one in several else one.name for one in found)

    async def usage(self) -> Usage:
        told = await self._connection.request("INFO")
        return Usage(
            topics=told["streams"],
            subscriptions=told["consumers"],
            memory_bytes=told["memory"],
            storage_bytes=told["storage"],
        )

    async def describe_subscription(self, subscription: str) -> SubscriptionStatus:
        info = await self._catalogue.consumer_info(subscription)
        config = consumer_of(info).config
        backlog = info["num_pending"] + info["num_ack_pending"]
        age = 0.0
        if backlog:
            after, subjects = info["ack_floor"]["stream_seq"], seen_subjects(info["config"])
            oldest = await self._log.first_after(config.topic, after, subjects)
            if oldest is not None:
                age = max(0.0, (self._clock.time_ns() - oldest.publish_time_ns) / NS)
        return SubscriptionStatus(
            config=config,
            unsettled=Unsettled(messages=backlog, leased=info["num_ack_pending"], oldest_age=age),
        )

    async def create_snapshot(self, snapshot: str, subscription: str) -> None:
        await self._snapshots.create(snapshot, subscription)

    async def list_snapshots(self, topic: str | None = None) -> Sequence[str]:
        return await self._snapshots.names(topic)

    async def describe_snapshot(self, snapshot: str) -> SnapshotStatus:
        return await self._snapshots.describe(snapshot)

    async def delete_snapshot(self, snapshot: str) -> None:
        await self._snapshots.delete(snapshot)

    async def seek(self, subscription: str, to: datetime | str) -> None:
        info = await self._catalogue.consumer_info(subscription)
        consumer = consumer_of(info)
        if isinstance(to, str):
            place = await self._snapshots.place(to, consumer)
        elif isinstance(to, datetime) and to.tzinfo is not None:
            place = await self._first_since(consumer.config.topic, to)
        else:
            raise InvalidArgumentError(
                f"Subscription {subscription!r} seeks to a snapshot's name or an aware datetime "
                f"(with a time zone), not {to!r}"
            )
        finished = finished_consumer(info)
        if finished is not None:
            await self._update(consumer, finished)
        # What is on loan, or waits to be lent in order, is so no longer.
        self._catalogue.forget(consumer)
        await self._reset(consumer, place)

    async def _first_since(self, topic: str, moment: datetime) -> int:
        record = await self._log.first_since(topic, to_ns(moment))
        return (await self._log.extent(topic)).end if record is None else record.sequence

    async def _check_takes_letters(self, topic: str) -> None:
        """Letters go to a topic on its own name, which a stream of others need not have."""
        subjects = topic_config(await self._catalogue.stream_info(topic)).subjects
        if not stores(topic, topic, subjects):
            raise InvalidArgumentError(
                f"Topic {topic!r} cannot take dead letters: it stores {', '.join(subjects)}, and "
                "not its own name; add that to its subjects, or choose another"
            )

    async def _exists(self, topic: str) -> bool:
        try:
            await self._catalogue.stream_info(topic)
        except NotFoundError:
            return False
        return True


@contextmanager
def _about(kind: str, name: str) -> Iterator[None]:
    """Say of what the server refused something; it does not."""
    try:
        yield
    except FailedPreconditionError as error:
        raise FailedPreconditionError(f"{kind} {name!r} cannot be so: {error}") from error


def _exists(kind: str, name: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"{kind} already exists: {name!r}; use it, or delete it first")
