"""What a bridge needs in the broker, and that nobody else has it already.

Provisioning creates what is missing, adds subjects that are missing, and changes nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.bridge.settings import BridgeSettings
from penstock.broker import Admin, Broker
from penstock.capabilities import update_subscription, update_topic
from penstock.config import PushDelivery, SubscriptionConfig, TopicConfig
from penstock.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnimplementedError,
)
from penstock.rules.wildcards import covers, overlap

# Longer than an outbox's relay may take to try again after it crashed.
_DUPLICATE_WINDOW = 600.0
# A request takes milliseconds.
_OTHERS_WRITE_WITHIN = 0.25
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Overlap:
    """A subject that one stream wants and another would store as well."""

    subject: str
    stream: str
    """Whose it is."""
    theirs: str


def overlaps(
    stream: str, subjects: Iterable[str], others: Mapping[str, Sequence[str]]
) -> list[Overlap]:
    """Where subjects that `stream` wants meet those of other streams."""
    return [
        Overlap(subject, other, theirs)
        for subject in subjects
        for other, held in others.items()
        for theirs in held
        if other != stream and overlap(subject, theirs)
    ]


def check_overlaps(
    stream: str, subjects: Iterable[str], others: Mapping[str, Sequence[str]]
) -> None:
    """`FailedPreconditionError` unless each subject would be stored by `stream` alone."""
    found = overlaps(stream, subjects, others)
    if found:
        listed = "; ".join(
            f"{one.subject!r} overlaps {one.theirs!r} of stream {one.stream!r}" for one in found
        )
        raise FailedPreconditionError(
            f"Stream {stream!r} cannot have its subjects, because others have them: {listed}. Take "
            "them from those streams, or use another stream_name or other names of apps"
        )


def missing(subjects: Iterable[str], held: Iterable[str]) -> tuple[str, ...]:
    """Subjects that none of those a stream has stands for."""
    patterns = tuple(held)
    return tuple(
        subject for subject in subjects if not any(covers(pattern, subject) for pattern in patterns)
    )


def held_subjects(config: TopicConfig) -> tuple[str, ...]:
    """What a topic stores, also when it does not say."""
    return config.subjects or (config.name, f"{config.name}.>")


def wanted_topics(settings: BridgeSettings) -> list[TopicConfig]:
    """The stream of events, and that of dead letters if there are any."""
    names = settings.names
    events = TopicConfig(
        name=names.stream_name,
        subjects=names.subjects,
        work_queue=True,
        duplicate_window=_DUPLICATE_WINDOW,
    )
    # Its own name too: what was done about dead letters is written down there.
    letters = TopicConfig(
        name=names.dlq_stream,
        subjects=(names.dlq_stream, *names.dlq_subjects),
        message_retention=settings.dead_letter_retention,
        duplicate_window=min(_DUPLICATE_WINDOW, settings.dead_letter_retention),
    )
    return [events, letters] if settings.use_dlq else [events]


def wanted_subscription(settings: BridgeSettings) -> SubscriptionConfig:
    """The consumer of this app. The broker counts deliveries and never gives up by itself: it
    would do so without a word, and what its consumer died of on the last delivery would stay."""
    push = PushDelivery(subject=settings.push_subject, group=settings.names.durable)
    return SubscriptionConfig(
        name=settings.names.durable,
        topic=settings.names.stream_name,
        ack_deadline=settings.ack_wait,
        subjects=(settings.names.destination_subject,),
        message_retention=31 * 86_400.0,
        push=push if settings.consumer_mode == "push" else None,
    )


@dataclass(slots=True)
class Provisioned:
    """What was done, in words, and what was right already."""

    changed: list[str]
    unchanged: list[str]


class Provisioner:
    """Creates and checks what a bridge needs. Needs a user who may; see docs/bridge.md."""

    def __init__(self, broker: Broker, settings: BridgeSettings) -> None:
        self._broker = broker
        self._admin: Admin = broker.admin
        self._settings = settings
        for need in ("subjects", "work_queues"):
            if not getattr(broker.capabilities, need):
                raise UnimplementedError(
                    f"This broker does not claim {need!r}, which a bridge needs; use nats:// or "
                    "local://DIR, or memory:// in tests"
                )

    async def provision(self) -> Provisioned:
        """See to it that everything is there. Safe to repeat, and side by side; what is refused
        has changed nothing."""
        done = Provisioned([], [])
        topics = wanted_topics(self._settings)
        consumer = wanted_subscription(self._settings)
        there = [await self._topic(wanted.name) for wanted in topics]
        existing = await self._subscription(consumer)
        for wanted, found in zip(topics, there, strict=True):
            await self._lacking(wanted, found)
        if existing is not None:
            _check_consumer(consumer, existing)
        for wanted, found in zip(topics, there, strict=True):
            await self._ensure_topic(wanted, found, done)
        await self._ensure_subscription(consumer, existing, done)
        return done

    async def problems(self) -> list[str]:
        """What is not as it should be, in words. Changes nothing."""
        found: list[str] = []
        for wanted in wanted_topics(self._settings):
            existing = await self._topic(wanted.name)
            if existing is None:
                found.append(f"Stream {wanted.name!r} is missing; run: penstock bridge provision")
                continue
            try:
                lacking = await self._lacking(wanted, existing)
            except FailedPreconditionError as error:
                found.append(str(error))
                continue
            if lacking:
                found.append(
                    f"Stream {wanted.name!r} lacks {', '.join(lacking)}; run: penstock bridge "
                    "provision"
                )
        return found + await self._consumer_problems(wanted_subscription(self._settings))

    async def _consumer_problems(self, wanted: SubscriptionConfig) -> list[str]:
        existing = await self._subscription(wanted)
        if existing is None:
            return [f"Consumer {wanted.name!r} is missing; run: penstock bridge provision"]
        try:
            _check_consumer(wanted, existing)
        except FailedPreconditionError as error:
            return [str(error)]
        return []

    async def _topic(self, name: str) -> TopicConfig | None:
        try:
            return (await self._admin.describe_topic(name)).config
        except NotFoundError:
            return None

    async def _subscription(self, wanted: SubscriptionConfig) -> SubscriptionConfig | None:
        try:
            return (await self._admin.describe_subscription(wanted.address)).config
        except NotFoundError:
            return None

    async def _lacking(self, wanted: TopicConfig, found: TopicConfig | None) -> tuple[str, ...]:
        """The subjects that a stream lacks and may have, or `FailedPreconditionError`."""
        held: tuple[str, ...] = ()
        if found is not None:
            _check_kind(wanted, found)
            held = held_subjects(found)
        lacking = missing(wanted.subjects, held)
        await self._check_free(wanted.name, lacking)
        return lacking

    async def _ensure_topic(
        self, wanted: TopicConfig, found: TopicConfig | None, done: Provisioned
    ) -> None:
        if found is None:
            try:
                await self._admin.create_topic(wanted)
            except AlreadyExistsError:
                # Another process came first; look at what it made.
                found = (await self._admin.describe_topic(wanted.name)).config
            else:
                done.changed.append(f"created stream {wanted.name} ({', '.join(wanted.subjects)})")
                return
        lacking = await self._lacking(wanted, found)
        added: dict[str, None] = {}
        for _ in range(_TRIES):
            if not lacking:
                break
            lacking = await self._add_subjects(wanted, added)
        else:
            raise UnavailableError(
                f"Stream {wanted.name!r} keeps losing {', '.join(added)}: others change it at the "
                "same time. Provision again when they are done"
            )
        if added:
            done.changed.append(f"added {', '.join(added)} to stream {wanted.name}")
        else:
            done.unchanged.append(f"stream {wanted.name}")

    async def _add_subjects(self, wanted: TopicConfig, added: dict[str, None]) -> tuple[str, ...]:
        """Add what a stream lacks; returns what it lacks a while later. Streams are read, changed
        and written back, and the server does not compare: whoever read it before us and writes it
        after us takes away what we added."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = (await self._admin.describe_topic(wanted.name)).config
        held = held_subjects(found)
        lacking = missing(wanted.subjects, held)
        if not lacking:
            return ()
        await update_topic(self._broker, replace(found, subjects=(*held, *lacking)))
        added.update(dict.fromkeys(lacking))
        # As long as others may take to write what they have read, judged by ourselves.
        await asyncio.sleep(max(_OTHERS_WRITE_WITHIN, 10 * (loop.time() - began)))
        now = (await self._admin.describe_topic(wanted.name)).config
        return missing(wanted.subjects, held_subjects(now))

    async def _ensure_subscription(
        self, wanted: SubscriptionConfig, existing: SubscriptionConfig | None, done: Provisioned
    ) -> None:
        if existing is None:
            try:
                await self._admin.create_subscription(wanted)
            except AlreadyExistsError:
                existing = (await self._admin.describe_subscription(wanted.address)).config
                _check_consumer(wanted, existing)
            else:
                done.changed.append(f"created consumer {wanted.name} ({wanted.subjects[0]})")
                return
        if existing.ack_deadline == wanted.ack_deadline:
            done.unchanged.append(f"consumer {wanted.name}")
            return
        try:
            changed = replace(existing, ack_deadline=wanted.ack_deadline)
            await update_subscription(self._broker, changed)
        except FailedPreconditionError as refused:
            raise FailedPreconditionError(
                f"Consumer {wanted.name!r} of stream {wanted.topic!r} delivers again after "
                f"{existing.ack_deadline:g} s, and not after {wanted.ack_deadline:g} s: {refused}. "
                "Or delete the consumer while nothing is in its hands, and provision again; "
                "unacked events stay in the stream"
            ) from refused
        done.changed.append(f"set ack_wait of consumer {wanted.name} to {wanted.ack_deadline:g} s")

    async def _check_free(self, stream: str, subjects: Sequence[str]) -> None:
        if subjects:
            check_overlaps(stream, subjects, await self._held(stream))

    async def _held(self, stream: str) -> dict[str, tuple[str, ...]]:
        """The subjects of all other streams; none when we may not look, and the broker refuses
        what overlaps by itself, if with fewer words."""
        held: dict[str, tuple[str, ...]] = {}
        try:
            topics = await self._admin.list_topics()
        except PermissionDeniedError:
            return held
        for topic in topics:
            if topic == stream:
                continue
            try:
                config = (await self._admin.describe_topic(topic)).config
            except (NotFoundError, PermissionDeniedError):
                continue
            held[topic] = held_subjects(config)
        return held


def _check_kind(wanted: TopicConfig, existing: TopicConfig) -> None:
    """How messages are kept cannot be changed afterwards."""
    if existing.work_queue == wanted.work_queue:
        return
    kept = {True: "work-queue", False: "limits or interest"}
    advice = (
        "messages would stay after they were acked"
        if wanted.work_queue
        else "dead letters could not be looked at, and would be gone once somebody did"
    )
    raise FailedPreconditionError(
        f"Stream {wanted.name!r} has {kept[existing.work_queue]} retention, and a bridge needs "
        f"{kept[wanted.work_queue]}: {advice}. It cannot be changed: use another stream_name, or "
        "drain the stream, delete it and provision again"
    )


def _check_consumer(wanted: SubscriptionConfig, existing: SubscriptionConfig) -> None:
    if existing.subjects != wanted.subjects:
        shown = ", ".join(existing.subjects) or "everything"
        raise FailedPreconditionError(
            f"Consumer {wanted.name!r} of stream {wanted.topic!r} receives {shown}, and not "
            f"{wanted.subjects[0]}: another pair of apps has it. Use another stream_name for this "
            "pair, or delete the consumer"
        )
    if existing.push != wanted.push:
        has, needs = (
            f"pushes to {one.push.subject}" if one.push else "is pulled from"
            for one in (existing, wanted)
        )
        raise FailedPreconditionError(
            f"Consumer {wanted.name!r} of stream {wanted.topic!r} {has}, and this bridge wants one "
            f"that {needs}. Change consumer_mode or delivery_subject, or delete the consumer"
        )
