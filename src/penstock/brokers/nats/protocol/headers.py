"""Names, subjects and header blocks as JetStream writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple
from urllib.parse import quote, unquote

from penstock.config import ServerName, is_name
from penstock.errors import InvalidArgumentError
from penstock.message import Draft
from penstock.rules.wildcards import matches

# Some clients write it in small letters, which the server does not deduplicate by.
_MESSAGE_IDS = ("Nats-Msg-Id", "nats-msg-id")
_MESSAGE_ID, _ORDERING_KEY = b"Nats-Msg-Id", b"Penstock-Ordering-Key"
_KEY_NAME = _ORDERING_KEY.decode()
_RESERVED = ("nats-", "penstock-")
HEADER_BLOCK = b"NATS/1.0\r\n"
ONLY_ID = b"NATS/1.0\r\nNats-Msg-Id: "
# JetStream stores their length in two bytes.
MAX_HEADERS = 65_535
# What RFC 9110 calls a token, but for % which escapes.
_TOKEN = re.compile(r"[!#$&'*+\-.^_`|~0-9A-Za-z]+")
_SAFE = "!#$&'*+-.^_`|~"
# How the server ends an answer, or says that there is none.
END_OF_BATCH, NO_MESSAGES, TIMED_OUT, CONFLICT, NO_RESPONDERS = 204, 404, 408, 409, 503
_SERVER_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]+")
# What a consumer says that sends nothing now.
IDLE = 100
_SUBJECT = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")


def encode_name(name: str) -> str:
    """A topic or subscription as the name of a stream or consumer: no dots, no slashes."""
    if isinstance(name, ServerName):
        if not _SERVER_NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"No stream or consumer can be called {str(name)!r}: a NATS server takes no "
                "spaces and none of . * > / and \\"
            )
        return str(name)
    return name.replace("%", "%25").replace(".", "%2E").replace("/", "%2F")


def decode_name(name: str) -> str:
    return name.replace("%2F", "/").replace("%2E", ".").replace("%25", "%")


@lru_cache(maxsize=4096)
def own_name(name: str) -> str:
    """What a stream or consumer is called here. What others named so that it cannot be one of ours
    keeps its name."""
    decoded = decode_name(name)
    is_ours = is_name(decoded) and encode_name(decoded) == name
    return decoded if is_ours else ServerName(name)


NOTHING = ("",)
"""The subjects of a topic that has none: a copy of others."""


def stores(topic: str, subject: str, subjects: Sequence[str] = ()) -> bool:
    """A topic has this subject: one inside it, or one of its `subjects` if they are others."""
    if subjects:
        return any(matches(pattern, subject) for pattern in subjects)
    return subject == topic or subject.startswith(f"{topic}.")


def check_subject(topic: str, subject: str, subjects: Sequence[str] = ()) -> bytes:
    """A draft's subject inside its topic, or among the topic's `subjects`, else
    `InvalidArgumentError`."""
    if subjects == NOTHING:
        raise InvalidArgumentError(
            f"Topic {topic!r} stores nothing that is published to it: it copies other streams"
        )
    if not stores(topic, subject, subjects):
        raise InvalidArgumentError(
            f"Topic {topic!r} stores {', '.join(subjects)}, and not {subject!r}"
            if subjects
            else f"Subject {subject!r} is not inside topic {topic!r}: it must be {topic!r} or "
            f"begin with '{topic}.'"
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
    if lowered.startswith(_RESERVED):
        raise InvalidArgumentError(
            f"Attribute {key!r} is reserved: keys must not begin with 'Nats-' or 'Penstock-'"
        )
    return (key if _TOKEN.fullmatch(key) else quote(key, safe=_SAFE)).encode()


def encode_header(draft: Draft) -> bytes:
    """The header block of a draft; empty when it needs none."""
    if (
        not draft.attributes
        and draft.ordering_key is None
        and draft.expect is None
        and draft.ttl is None
    ):
        if draft.message_id is None:
            return b""
        return ONLY_ID + draft.message_id.encode() + b"\r\n\r\n"
    lines = [b"%b: %b\r\n" % (_header_name(k), v.encode()) for k, v in draft.attributes.items()]
    if draft.message_id is not None:
        lines.append(b"Nats-Msg-Id: %b\r\n" % draft.message_id.encode())
    if draft.ordering_key is not None:
        lines.append(b"%b: %b\r\n" % (_ORDERING_KEY, draft.ordering_key.encode()))
    if draft.ttl is not None:
        lines.append(b"Nats-TTL: %ds\r\n" % ceil(draft.ttl))  # Never sooner than asked.
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
    """Every header of a block, reserved ones included; repeated ones as one, as in `describe`."""
    found: dict[str, str] = {}
    for line in block[:-4].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name:
            key = name.decode(errors="replace")
            text = (value[1:] if value.startswith(b" ") else value).decode(errors="replace")
            found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def status_of(block: bytes) -> tuple[int, str]:
    """Code and description of a status message; 0 when the block is an ordinary one."""
    line = block.partition(b"\r\n")[0]
    if len(line) <= 9:
        return 0, ""
    code, _, description = line[9:].partition(b" ")
    if len(code) != 3 or not code.isdigit():
        return 0, ""
    return int(code), description.decode(errors="replace")


def pending_of(block: bytes) -> int | None:
    """How many of the messages asked for will not come, as the status that ends a pull says."""
    _, found, rest = block.partition(b"\r\nNats-Pending-Messages: ")
    digits = rest.partition(b"\r")[0]
    return int(digits) if found and digits.isdigit() else None


def stalled_of(block: bytes) -> bytes:
    """Whom a heartbeat wants to be told that we are there, because its consumer waits for us."""
    return block.partition(b"\r\nNats-Consumer-Stalled: ")[2].partition(b"\r")[0]


def pin_of(block: bytes) -> str:
    """Which client of a consumer is served, as its messages say; empty when they do not."""
    _, found, rest = block.rpartition(b"\r\nNats-Pin-Id: ")
    return rest.partition(b"\r")[0].decode() if found else ""


class Described(NamedTuple):
    """What the headers of a message say of it. `message_id` is empty when it was given none."""

    message_id: str
    ordering_key: str | None
    attributes: dict[str, str]


def describe(block: bytes) -> Described:
    """The reserved headers that we know, and what the publisher set: all that are not reserved."""
    message_id, ordering_key = "", None
    attributes: dict[str, str] = {}
    for line in block[len(HEADER_BLOCK) : -4].decode(errors="replace").split("\r\n"):
        name, _, text = line.partition(":")
        if text[:1] == " ":
            text = text[1:]
        attribute = _attribute(name)
        if attribute:
            if attribute in attributes:
                # Repeated by another client. As in HTTP, one value that holds them all.
                text = f"{attributes[attribute]}, {text}"
            attributes[attribute] = text
        elif name in _MESSAGE_IDS:
            message_id = text
        elif name == _KEY_NAME:
            ordering_key = text
    return Described(message_id, ordering_key, attributes)


# Few names come again and again.
@lru_cache(maxsize=4096)
def _attribute(name: str) -> str:
    """The attribute that is stored in a header; empty when the header is reserved."""
    if name.lower().startswith(_RESERVED):
        return ""
    return unquote(name) if "%" in name else name
