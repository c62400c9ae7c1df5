"""Drafts and records as JetStream sees them: subjects, headers, reply subjects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import quote, unquote

from msgspec import Struct

from penstock.errors import InvalidArgumentError
from penstock.message import Draft, Record
from penstock.rules.wildcards import matches

ORDERING_KEY = "Penstock-Ordering-Key"
HEADER_BLOCK = b"NATS/1.0\r\n"
_ONLY_ID = b"NATS/1.0\r\nNats-Msg-Id: "
# What RFC 9110 calls a token, but for % which escapes.
_TOKEN = re.compile(r"[!#$&'*+\-.^_`|~0-9A-Za-z]+")
_SAFE = "!#$&'*+-.^_`|~"
_SUBJECT = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")


def encode_name(name: str) -> str:
    """A topic or subscription as the name of a stream or consumer: no dots, no slashes."""
    return name.replace("%", "%25").replace(".", "%2E").replace("/", "%2F")


def decode_name(name: str) -> str:
    return name.replace("%2F", "/").replace("%2E", ".").replace("%25", "%")


def check_subject(topic: str, subject: str, subjects: Sequence[str] = ()) -> bytes:
    """A draft's subject inside its topic, or among the topic's `subjects`, else
    `InvalidArgumentError`."""
    if subjects:
        if not any(matches(pattern, subject) for pattern in subjects):
            raise InvalidArgumentError(
                f"Topic {topic!r} stores {', '.join(subjects)}, and not {subject!r}"
            )
    elif subject != topic and not subject.startswith(f"{topic}."):
        raise InvalidArgumentError(
            f"Subject {subject!r} is not inside topic {topic!r}: it must be {topic!r} or begin "
            f"with '{topic}.'"
        )
    if not _SUBJECT.fullmatch(subject):
        raise InvalidArgumentError(
            f"Subject {subject!r} is not one NATS takes: tokens joined by dots, without spaces, "
            "* or >"
        )
    return subject.encode()


@lru_cache(maxsize=4096)
def _header_name(key: str) -> bytes:
    lowered = key.lower()
    if lowered.startswith(("nats-", "penstock-")):
        raise InvalidArgumentError(
            f"Attribute {key!r} is reserved: keys must not begin with 'Nats-' or 'Penstock-'"
        )
    return (key if _TOKEN.fullmatch(key) else quote(key, safe=_SAFE)).encode()


def encode_header(draft: Draft) -> bytes:
    """The header block of a draft; empty when it needs none."""
    if (
        not draft.attributes
        and draft.message_id is not None
        and draft.ordering_key is None
        and draft.expect is None
        and draft.ttl is None
    ):
        return b"%b%b\r\n\r\n" % (_ONLY_ID, draft.message_id.encode())
    lines = [b"%b: %b\r\n" % (_header_name(k), v.encode()) for k, v in draft.attributes.items()]
    if draft.message_id is not None:
        lines.append(b"Nats-Msg-Id: %b\r\n" % draft.message_id.encode())
    if draft.ordering_key is not None:
        lines.append(b"%b: %b\r\n" % (ORDERING_KEY.encode(), draft.ordering_key.encode()))
    if draft.ttl is not None:
        lines.append(b"Nats-TTL: %ds\r\n" % round(draft.ttl))
    expect = draft.expect
    if expect is not None:
        for name, value in (
            (b"Nats-Expected-Stream", expect.topic and encode_name(expect.topic)),
            (b"Nats-Expected-Last-Msg-Id", expect.last_id),
            (b"Nats-Expected-Last-Sequence", expect.last_sequence),
            (b"Nats-Expected-Last-Subject-Sequence", expect.last_subject_sequence),
        ):
            if value is not None:
                lines.append(b"%b: %b\r\n" % (name, str(value).encode()))
    return b"%b%b\r\n" % (HEADER_BLOCK, b"".join(lines)) if lines else b""


def decode_header(block: bytes) -> dict[str, str]:
    """Every header of a block, reserved ones included."""
    found = {}
    for line in block[len(HEADER_BLOCK) : -4].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name:
            text = value[1:] if value.startswith(b" ") else value
            found[name.decode(errors="replace")] = text.decode(errors="replace")
    return found


def status_of(block: bytes) -> tuple[int, str]:
    """Code and description of a status message; 0 when the block is an ordinary one."""
    line = block.partition(b"\r\n")[0]
    if len(line) <= 9:
        return 0, ""
    code, _, description = line[9:].partition(b" ")
    return int(code), description.decode(errors="replace")


def attributes_of(headers: Mapping[str, str]) -> dict[str, str]:
    """What the publisher set: everything but the reserved headers."""
    return {
        unquote(name) if "%" in name else name: value
        for name, value in headers.items()
        if not name.lower().startswith(("nats-", "penstock-"))
    }


class Lent(Struct, frozen=True, gc=False):
    """What an ack subject says of a delivery. Both of its forms are read."""

    stream: str
    consumer: str
    delivered: int
    sequence: int
    published_ns: int


def parse_ack_subject(reply: bytes) -> Lent:
    """`$JS.ACK.<stream>.<consumer>.…` or `$JS.ACK.<domain>.<account>.<stream>.<consumer>.…`"""
    tokens = reply.split(b".")
    at = 2 if len(tokens) == 9 else 4
    return Lent(
        tokens[at].decode(),
        tokens[at + 1].decode(),
        int(tokens[at + 2]),
        int(tokens[at + 3]),
        int(tokens[at + 5]),
    )


def record_of(
    topic: str, subject: bytes, block: bytes, payload: bytes, sequence: int, published_ns: int
) -> Record:
    """A stored message; `subject` as the server sent it."""
    if not block:
        return Record(
            sequence, f"{topic}-{sequence}", payload, {}, None, subject.decode(), published_ns
        )
    if block.startswith(_ONLY_ID) and block.count(b"\r\n") == 3:
        # By far the most common: a message id and nothing else.
        message_id = block[len(_ONLY_ID) : -4].decode(errors="replace")
        return Record(sequence, message_id, payload, {}, None, subject.decode(), published_ns)
    headers = decode_header(block)
    # Some clients write it in small letters, which the server does not deduplicate by.
    given = headers.get("Nats-Msg-Id") or headers.get("nats-msg-id")
    return Record(
        sequence,
        given or f"{topic}-{sequence}",
        payload,
        attributes_of(headers),
        headers.get(ORDERING_KEY),
        subject.decode(),
        published_ns,
    )
