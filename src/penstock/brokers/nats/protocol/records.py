"""Stored messages, from the bytes the server sent: the one place that reads them.

A message says where it is stored in one of two ways. A consumer delivers it with the subject that
its ack goes to, which says so; Direct Get adds headers that do, after the message's own. Its own
headers give its id, its ordering key and its attributes.

    aio    one message at a time, to a `Record`: `record_of`, `direct_record`, and from an answer of
           the API `answered_record`
    sync   columns, parsed where they arrive: `parsing.py`, with the same patterns and functions
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from penstock.brokers.nats.protocol.frames import nonsense
from penstock.brokers.nats.protocol.headers import HEADER_BLOCK, ONLY_ID, describe
from penstock.clock import NS
from penstock.message import Record

Raw: TypeAlias = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply, header block and payload of a message."""

# What Direct Get adds to a message: subject, sequence, seconds and fraction.
ADDED = (
    rb"Nats-Stream: [^\r]*\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d+)\r\n"
    rb"Nats-Time-Stamp: ([^\r.Z]*)(?:\.(\d+))?Z\r\n"
)
_added = re.compile(ADDED).match


class Lent(Struct, frozen=True, gc=False):
    """What an ack subject says of a delivery. `nth`: counts what its consumer sent."""

    stream: str
    consumer: str
    delivered: int
    sequence: int
    nth: int
    published_ns: int


def parse_ack_subject(reply: bytes) -> Lent:
    """`$JS.ACK.<stream>.<consumer>.…` or `$JS.ACK.<domain>.<account>.<stream>.<consumer>.…`"""
    tokens = reply.split(b".")
    at = 2 if len(tokens) == 9 else 4
    try:
        return Lent(
            tokens[at].decode(),
            tokens[at + 1].decode(),
            int(tokens[at + 2]),
            int(tokens[at + 3]),
            int(tokens[at + 4]),
            int(tokens[at + 5]),
        )
    except (ValueError, IndexError):
        raise nonsense("a message without an ack subject") from None


def parse_attempt(reply: bytes) -> tuple[int, int, int]:
    """How often a message was delivered, its sequence, and when it was published: what is wanted
    of every delivery."""
    tokens = reply.split(b".")
    at = 4 if len(tokens) == 9 else 6
    try:
        return int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 3])
    except (ValueError, IndexError):
        raise nonsense("a message without an ack subject") from None


def is_last(reply: bytes) -> bool:
    """Nothing was behind a message that was delivered for the first time. Those that are delivered
    again are not among what the server counts."""
    tokens = reply.split(b".")
    at = 4 if len(tokens) == 9 else 6
    return tokens[at : at + 1] == [b"1"] and tokens[at + 4 : at + 5] == [b"0"]


class Place(Struct, frozen=True, gc=False):
    """Where a message is stored, and the header block that is its own."""

    subject: bytes
    sequence: int
    published_ns: int
    block: bytes


def parse_added(topic: str, block: bytes) -> Place:
    """Take what Direct Get added from a header block."""
    at = block.rfind(b"\r\nNats-Stream: ") + 2
    found = _added(block, at)
    if found is None:
        raise nonsense(f"a message of topic {topic!r} without its place")
    subject, sequence, moment, digits = found.groups()
    own = block[:at] + b"\r\n" if at > len(HEADER_BLOCK) else b""
    published = seconds_of(moment) * NS + int((digits or b"").ljust(9, b"0"))
    return Place(subject, int(sequence), published, own)


def delivered_records(topic: str, raws: list[Raw]) -> list[Record]:
    """What a consumer delivered."""
    records = []
    for subject, reply, block, payload in raws:
        _, sequence, published_ns = parse_attempt(reply)
        records.append(record_of(topic, subject, block, payload, sequence, published_ns))
    return records


def direct_record(topic: str, raw: Raw) -> Record:
    _, _, block, payload = raw
    place = parse_added(topic, block)
    return record_of(topic, place.subject, place.block, payload, place.sequence, place.published_ns)


class _Answered(Struct):
    """A message as the API answers it."""

    subject: str
    seq: int
    time: str
    hdrs: bytes = b""
    data: bytes = b""


def answered_record(topic: str, message: dict[str, Any]) -> Record:
    """A message that was asked for through the API."""
    try:
        found = msgspec.convert(message, _Answered)
        moment, _, digits = found.time.removesuffix("Z").partition(".")
        published = seconds_of(moment.encode()) * NS + int(digits.ljust(9, "0"))
    except (msgspec.MsgspecError, ValueError):
        raise nonsense(f"a message of topic {topic!r} without its place") from None
    subject = found.subject.encode()
    return record_of(topic, subject, found.hdrs, found.data, found.seq, published)


def direct_sequence(raw: Raw) -> int:
    """The sequence alone, which is wanted before the rest."""
    try:
        return int(raw[2].rpartition(b"Nats-Sequence: ")[2].partition(b"\r")[0])
    except ValueError:
        raise nonsense("a message without its sequence") from None


def record_of(
    topic: str, subject: bytes, block: bytes, payload: bytes, sequence: int, published_ns: int
) -> Record:
    """A stored message; `subject` as the server sent it, `block` without what it added."""
    # NATS takes any bytes; one message that is no text must not keep the others from coming.
    subject_text = subject.decode("utf-8", "replace")
    if not block:
        name = unnamed(topic, sequence)
        return Record(sequence, name, payload, {}, None, subject_text, published_ns)
    if block.startswith(ONLY_ID) and block.count(b"\r\n") == 3:
        # By far the most common: a message id and nothing else.
        message_id = block[len(ONLY_ID) : -4].decode(errors="replace")
        return Record(sequence, message_id, payload, {}, None, subject_text, published_ns)
    message_id, ordering_key, attributes = describe(block)
    return Record(
        sequence,
        message_id or unnamed(topic, sequence),
        payload,
        attributes,
        ordering_key,
        subject_text,
        published_ns,
    )


def unnamed(topic: str, sequence: int) -> str:
    """The id of a message that was published without one."""
    return f"{topic}-{sequence}"


@lru_cache(maxsize=1024)
def seconds_of(text: bytes) -> int:
    """`2026-01-02T03:04:05` in seconds since the epoch. Neighbours share them."""
    try:
        return int(datetime.fromisoformat(f"{text.decode()}+00:00").timestamp())
    except ValueError:
        raise nonsense("a message without its time") from None


def moment_text(ns: int) -> str:
    """The other way round, as the server reads it in requests."""
    whole, below = divmod(max(ns, 0), NS)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{below:09d}Z"
