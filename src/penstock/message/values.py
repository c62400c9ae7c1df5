"""What a message is at each step, as publishers, logs, subscribers and brokers hold it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from math import inf

from msgspec import Struct

from penstock.errors import (
    ClosedError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    PenstockError,
    UnavailableError,
)
from penstock.message.checks import (
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_DATA_BYTES,
    MAX_MESSAGE_ID_BYTES,
    MAX_ORDERING_KEY_BYTES,
    all_text,
    as_bytes,
    bytes_of,
    check_text,
    checked_attributes,
)


class Expect(Struct, frozen=True, gc=False):
    """What must be true of the topic for a draft to be stored; None expects nothing.

    `last_id`, `last_sequence`: of the topic's last message. `last_subject_sequence`: of the last
    message on the draft's own subject, 0 for none. `topic`: the topic that stores it.
    """

    topic: str | None = None
    last_id: str | None = None
    last_sequence: int | None = None
    last_subject_sequence: int | None = None


class Draft(Struct, frozen=True, gc=False):
    """A message to be published. Build it with `Draft.of`, which validates.

    `message_id` makes a publish safe to repeat: within the topic's duplicate window the broker
    stores it once. `subject` is the place inside the topic, by default the topic's own name.
    `ttl`: seconds after which the broker may forget it.
    """

    data: bytes = b""
    attributes: Mapping[str, str] = {}
    ordering_key: str | None = None
    message_id: str | None = None
    subject: str | None = None
    expect: Expect | None = None
    ttl: float | None = None

    @classmethod
    def of(
        cls,
        data: bytes | bytearray | memoryview = b"",
        attributes: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        message_id: str | None = None,
        subject: str | None = None,
        *,
        expect: Expect | None = None,
        ttl: float | None = None,
        own_id: str | None = None,
    ) -> Draft:
        """A draft every broker accepts, or `InvalidArgumentError`.

        `own_id` is a message id of our own making, used when the caller gave none.
        """
        if type(data) is not bytes:
            data = as_bytes(data)
        if len(data) > MAX_DATA_BYTES:
            raise InvalidArgumentError(
                f"Message size exceeds maximum of 10MB: {len(data):,} bytes; "
                "store the payload elsewhere and publish a reference to it"
            )
        attributes = checked_attributes(attributes) if attributes else {}
        if ordering_key is not None:
            check_text("Ordering key", ordering_key, MAX_ORDERING_KEY_BYTES)
        if message_id is not None:
            check_text("Message id", message_id, MAX_MESSAGE_ID_BYTES)
        if subject is not None:
            check_text("Subject", subject, MAX_ATTRIBUTE_VALUE_BYTES)
        if expect is not None or ttl is not None:
            _check_conditions(expect, ttl)
        return cls(
            data,
            attributes,
            ordering_key or None,
            message_id or own_id,
            subject or None,
            expect,
            ttl,
        )

    def __repr__(self) -> str:
        return f"<Draft {len(self.data)} bytes, id {self.message_id!r}>"


class Receipt(Struct, frozen=True, gc=False):
    """The broker's answer to one draft: it is stored. `duplicate` means it already was."""

    message_id: str
    sequence: int
    duplicate: bool = False


# Closed: it may have been under way then.
_IN_DOUBT = (ClosedError, DeadlineExceededError, InternalError, UnavailableError)


class PublishFault(Struct, frozen=True):
    """The broker's other answer to one draft: it is not stored, or we cannot know."""

    error: PenstockError

    @property
    def definite(self) -> bool:
        """It is certainly not stored. Otherwise the answer was lost, late or no answer at all."""
        return not isinstance(self.error, _IN_DOUBT)


class Record(Struct, frozen=True, gc=False):
    """A message as a topic's log holds it. `sequence` grows by one a message, from 1."""

    sequence: int
    message_id: str
    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str | None
    subject: str
    publish_time_ns: int

    @property
    def size(self) -> int:
        """Bytes of data and attributes: what it takes up wherever messages are counted."""
        return len(self.data) + bytes_of(all_text(self.attributes))

    def __repr__(self) -> str:
        return f"<Record {self.message_id!r} at {self.sequence}, {len(self.data)} bytes>"


class Delivery(Struct, frozen=True, gc=False):
    """A record on loan: ours for `ack_deadline` seconds unless settled or extended before.

    `ack_id` names this delivery, not the message: a redelivery carries a new one.
    """

    record: Record
    ack_id: str
    delivery_attempt: int
    ack_deadline: float


class AckResponse(IntEnum):
    """What became of a settlement; true if it succeeded. The numbers are gRPC codes."""

    SUCCESS = 0
    INVALID = 3
    PERMISSION_DENIED = 7
    FAILED_PRECONDITION = 9
    OTHER = 13

    def __bool__(self) -> bool:
        return self is AckResponse.SUCCESS


class Verb(Enum):
    ACK = "ack"
    NACK = "nack"
    EXTEND = "extend"
    REJECT = "reject"
    RELEASE = "release"


class Settlement(Struct, frozen=True, gc=False):
    """The answer to one delivery.

    ack: done with it. nack: bring it back, after `seconds` (None: as the retry policy says).
    extend: `seconds` more from now. reject: never again; it goes to the dead letters if the
    subscription has any. release: nobody has looked at it; bring it back at once and, where the
    broker can, without counting an attempt.
    """

    ack_id: str
    verb: Verb
    seconds: float | None = None


def _check_conditions(expect: Expect | None, ttl: float | None) -> None:
    if expect is not None:
        _check_expect(expect)
    if ttl is not None and not (isinstance(ttl, int | float) and 1 <= ttl < inf):
        raise InvalidArgumentError(f"ttl must be at least 1 second, not {ttl!r}")


def _check_expect(expect: Expect) -> None:
    """What is expected travels in headers, like all that is said of a message."""
    if not isinstance(expect, Expect):
        raise InvalidArgumentError(f"expect must be an Expect, not {type(expect).__name__}")
    for name, text in (("topic", expect.topic), ("last_id", expect.last_id)):
        if text is not None:
            check_text(f"{name} of what is expected", text, MAX_MESSAGE_ID_BYTES)
    for name, number in (
        ("last_sequence", expect.last_sequence),
        ("last_subject_sequence", expect.last_subject_sequence),
    ):
        if number is not None and not (isinstance(number, int) and number >= 0):
            raise InvalidArgumentError(
                f"{name} of what is expected must be a whole number from 0 on, not {number!r}"
            )
