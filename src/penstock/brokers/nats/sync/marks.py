"""Marks: small values that are replaced only by those who know what they replace.

A mark is the last message on a subject of its own, in a stream that keeps nothing else; its version
is the sequence. The server compares and stores in one step.
"""

from __future__ import annotations

import msgspec

from penstock.broker import Mark
from penstock.brokers.nats.protocol.configuration import marks_config
from penstock.brokers.nats.protocol.errors import odd_status
from penstock.brokers.nats.protocol.headers import (
    NO_RESPONDERS,
    check_subject,
    encode_header,
    encode_name,
    status_of,
)
from penstock.brokers.nats.protocol.requests import stored
from penstock.brokers.nats.sync.connection import LazyConnection
from penstock.errors import NotFoundError, PenstockError, TopicNotFoundError
from penstock.message import Draft, Expect


class _Stored(msgspec.Struct):
    """A message as the API answers it."""

    seq: int
    data: bytes = b""


def get_mark(link: LazyConnection, topic: str, name: str) -> Mark | None:
    """The leader's word: a replica may be behind."""
    request = {"last_by_subj": _subject(topic, name)}
    with link.use() as connection:
        try:
            answer = connection.request(f"STREAM.MSG.GET.{encode_name(topic)}", request)
        except NotFoundError:
            return None
    found = msgspec.convert(answer["message"], _Stored)
    return Mark(found.data, found.seq)


def set_mark(link: LazyConnection, topic: str, name: str, data: bytes, replaces: int) -> int:
    subject = _subject(topic, name)
    header = encode_header(Draft(expect=Expect(last_subject_sequence=replaces)))
    with link.use() as connection:
        block, answer = connection.ask(subject, header, data)
        if block and status_of(block)[0] == NO_RESPONDERS and not _exists(link, topic):
            connection.request(f"STREAM.CREATE.{encode_name(topic)}", marks_config(topic))
            block, answer = connection.ask(subject, header, data)
        if block:
            # It is there, and nobody answers for it: its servers are choosing a leader.
            raise odd_status(f"Topic {topic!r}", *status_of(block))
        ack = stored(topic, block, answer)
        if isinstance(ack, PenstockError):
            raise ack
        return ack.seq


def _exists(link: LazyConnection, topic: str) -> bool:
    with link.use() as connection:
        try:
            connection.request(
                f"STREAM.INFO.{encode_name(topic)}", missing=lambda: TopicNotFoundError(topic)
            )
        except TopicNotFoundError:
            return False
    return True


def _subject(topic: str, name: str) -> str:
    return check_subject(topic, f"{topic}.{name}").decode()
