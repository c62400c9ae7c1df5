"""Snapshots of subscriptions: where each of them was, kept in a key-value bucket.

JetStream tells up to where a consumer has seen everything acked, its ack floor, and not what was
acked beyond. So a snapshot is the ack floor, and going back to one delivers again all that follows:
what was unacked, what was acked out of turn, and what was published since.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from penstock.broker import SnapshotStatus
from penstock.brokers.nats.aio.connection import Connection
from penstock.brokers.nats.aio.publishing import Publishing
from penstock.brokers.nats.aio.pulling import Pulling
from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.log import NatsLog
from penstock.brokers.nats.protocol.configuration import topic_config
from penstock.brokers.nats.protocol.consumers import Consumer, consumer_of, seen_subjects
from penstock.brokers.nats.protocol.headers import encode_name, own_name
from penstock.brokers.nats.protocol.records import answered_record
from penstock.clock import NS, Clock, PreciseTime
from penstock.config import DAY, check_name
from penstock.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    SnapshotNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from penstock.message import Draft, Expect, PublishFault

BUCKET = "PENSTOCK-SNAPSHOTS"
STREAM = f"KV_{BUCKET}"
"""How the tools of NATS name the stream of a bucket."""
_KEYS = f"$KV.{BUCKET}."
_LIFETIME_NS = int(7 * DAY * NS)
_LEAST_NS = 3600 * NS
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_ESCAPED = re.compile(r"=([0-9A-F]{2})")


class _Kept(msgspec.Struct):
    """What the bucket holds under a snapshot's name."""

    stream: str
    created: str
    """When the stream was: another of its name is another topic."""
    floor: int
    expires_ns: int


_decode = msgspec.json.Decoder(_Kept).decode


class Snapshots:
    def __init__(
        self,
        connection: Connection,
        catalogue: Catalogue,
        log: NatsLog,
        publishing: Publishing,
        pulling: Pulling,
        clock: Clock,
    ) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._log = log
        self._publishing = publishing
        self._pulling = pulling
        self._clock = clock

    async def create(self, snapshot: str, subscription: str) -> None:
        check_name("Snapshot", snapshot)
        info = await self._catalogue.consumer_info(subscription)
        consumer = consumer_of(info)
        # Where that cannot be had, acks that were not counted yet come again, as others may.
        with suppress(UnavailableError, DeadlineExceededError, PermissionDeniedError):
            await self._pulling.acks_are_counted(consumer)
            info = await self._catalogue.info(consumer)
        topic = consumer.config.topic
        stream = await self._catalogue.stream_info(topic)
        if topic_config(stream).work_queue:
            raise FailedPreconditionError(
                f"Topic {topic!r} is a work queue: what is acked is gone, so a snapshot of "
                f"subscription {subscription!r} could bring nothing back"
            )
        kept = _Kept(
            stream=consumer.stream,
            created=stream["created"],
            floor=info["ack_floor"]["stream_seq"],
            expires_ns=await self._oldest_ns(topic, info) + _LIFETIME_NS,
        )
        left_ns = kept.expires_ns - self._clock.time_ns()
        if left_ns < _LEAST_NS:
            raise FailedPreconditionError(
                f"Snapshot {snapshot!r} would expire within an hour, seven days after the oldest "
                f"message that subscription {subscription!r} has not acked; ack it first"
            )
        await self._keep(snapshot, kept, left_ns / NS)

    async def _oldest_ns(self, topic: str, info: dict[str, Any]) -> int:
        """When the oldest message that is not acked was published; now, if there is none."""
        if info["num_pending"] + info["num_ack_pending"]:
            floor, subjects = info["ack_floor"]["stream_seq"], seen_subjects(info["config"])
            oldest = await self._log.first_after(topic, floor, subjects)
            if oldest is not None:
                return oldest.publish_time_ns
        return self._clock.time_ns()

    async def _keep(self, snapshot: str, kept: _Kept, seconds: float) -> None:
        with suppress(AlreadyExistsError):
            await self._catalogue.create_stream(_BUCKET_CONFIG)
        draft = Draft(
            msgspec.json.encode(kept),
            subject=_subject(snapshot),
            expect=Expect(last_subject_sequence=0),
            ttl=seconds,
        )
        [answer] = await self._publishing.publish(STREAM, [draft])
        if isinstance(answer, PublishFault):
            if isinstance(answer.error, FailedPreconditionError):
                raise AlreadyExistsError(
                    f"Snapshot already exists: {snapshot!r}; use it, or delete it first"
                )
            raise answer.error

    async def names(self, topic: str | None) -> Sequence[str]:
        wanted: tuple[str, str] | None = None
        if topic is not None:
            wanted = encode_name(topic), (await self._catalogue.stream_info(topic))["created"]
        try:
            info = await self._connection.request(
                f"STREAM.INFO.{STREAM}", {"subjects_filter": f"{_KEYS}>"}
            )
        except NotFoundError:
            return []
        found = []
        for subject in info["state"].get("subjects") or {}:
            name = _name(subject)
            with suppress(SnapshotNotFoundError):
                kept = await self._kept(name)
                if wanted is None or (kept.stream, kept.created) == wanted:
                    found.append(name)
        return sorted(found)

    async def describe(self, snapshot: str) -> SnapshotStatus:
        kept = await self._kept(snapshot)
        topic = own_name(kept.stream)
        try:
            deleted = (await self._catalogue.stream_info(topic))["created"] != kept.created
        except TopicNotFoundError:
            deleted = True
        return SnapshotStatus(
            topic=topic, expires=PreciseTime.from_ns(kept.expires_ns), topic_deleted=deleted
        )

    async def delete(self, snapshot: str) -> None:
        await self._kept(snapshot)
        await self._connection.request(f"STREAM.PURGE.{STREAM}", {"filter": _subject(snapshot)})

    async def place(self, snapshot: str, consumer: Consumer) -> int:
        """Where a consumer has to go on to be where a snapshot was."""
        kept = await self._kept(snapshot)
        stream = await self._catalogue.stream_info(consumer.config.topic)
        if (kept.stream, kept.created) != (consumer.stream, stream["created"]):
            other = own_name(kept.stream)
            raise InvalidArgumentError(
                f"Snapshot {snapshot!r} is of another topic ({other!r}) than subscription "
                f"{consumer.config.name!r} ({consumer.config.topic!r})"
            )
        return kept.floor + 1

    async def _kept(self, snapshot: str) -> _Kept:
        """By the leader's word: a replica may not have heard of it yet."""
        try:
            answer = await self._connection.request(
                f"STREAM.MSG.GET.{STREAM}", {"last_by_subj": _subject(snapshot)}
            )
            kept = _decode(answered_record(STREAM, answer["message"]).data)
        except (NotFoundError, msgspec.MsgspecError):
            raise SnapshotNotFoundError(snapshot) from None
        if kept.expires_ns <= self._clock.time_ns():
            raise SnapshotNotFoundError(snapshot)
        return kept


_BUCKET_CONFIG = {
    "name": STREAM,
    "subjects": [f"{_KEYS}>"],
    "storage": "file",
    "discard": "new",
    "max_msgs_per_subject": 1,
    "deny_delete": True,
    "allow_rollup_hdrs": True,
    "allow_direct": True,
    "allow_msg_ttl": True,
}


def _subject(snapshot: str) -> str:
    """A key that the tools of NATS read, too."""
    return _KEYS + _UNSAFE.sub(lambda found: f"={ord(found[0]):02X}", snapshot)


def _name(subject: str) -> str:
    key = subject.removeprefix(_KEYS)
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), key)
