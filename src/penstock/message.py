"""The values a message is made of, from draft to settlement.

Draft ──publish──▶ Receipt            what the publisher holds
  └─ stored as ──▶ Record             what a log holds
                     └─▶ Delivery     a record on loan to one subscriber
                           └─▶ Message    a delivery with verbs, what a handler sees
                                 └─▶ Settlement   the answer to a delivery
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from enum import Enum, IntEnum
from itertools import chain
from math import inf
from types import TracebackType
from typing import NoReturn, Protocol, Self

from msgspec import Struct

from penstock.clock import NS, Clock, PreciseTime, to_ns
from penstock.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    PenstockError,
    UnavailableError,
)

MAX_DATA_BYTES = 10 * 2**20
MAX_ATTRIBUTES = 100
MAX_ATTRIBUTE_KEY_BYTES = 256
MAX_ATTRIBUTE_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024
MAX_MESSAGE_ID_BYTES = 1024
MAX_ACK_DEADLINE = 600.0
# What Google's own clients and its schemas add, and therefore may be passed on.
_GOOGLE_CLIENTS = "googclient_"

_control_character = re.compile(r"[\x00-\x1f\x7f]").search


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
            data = _as_bytes(data)
        if len(data) > MAX_DATA_BYTES:
            raise InvalidArgumentError(
                f"Message size exceeds maximum of 10MB: {len(data):,} bytes; "
                "store the payload elsewhere and publish a reference to it"
            )
        attributes = _checked_attributes(attributes) if attributes else {}
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


_IN_DOUBT = (DeadlineExceededError, InternalError, UnavailableError)


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
        return len(self.data) + _bytes_of(_all_text(self.attributes))

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
    """What became of a settlement. The numbers are gRPC codes."""

    SUCCESS = 0
    INVALID = 3
    PERMISSION_DENIED = 7
    FAILED_PRECONDITION = 9
    OTHER = 13


class Verb(Enum):
    ACK = "ack"
    NACK = "nack"
    EXTEND = "extend"
    REJECT = "reject"
    RELEASE = "release"


# On Python 3.11 finding a member in its enum takes longer than most of what is done with it.
_ACK, _NACK = Verb.ACK, Verb.NACK


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


class Owner(Protocol):
    """Who answers for a message's verbs: its subscription, or what of it delivered the message."""

    def settle(self, message: Message, verb: Verb, seconds: float | None) -> None: ...

    def settle_with_response(
        self, message: Message, verb: Verb, *, first: bool
    ) -> Awaitable[AckResponse]: ...

    def modify_ack_deadline(self, message: Message, seconds: float) -> None: ...


class Attributes(dict[str, str]):
    """The attributes of a message: a dict in everything but that it cannot be changed."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "The attributes of a message cannot be changed; copy them first: "
            "dict(message.attributes)"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[Attributes], tuple[dict[str, str]]]:
        return Attributes, (dict(self),)


class Message:
    """A received message. Its content never changes; the first settlement wins.

    The verbs return at once and are sent in batches; `*_with_response` waits for the broker's
    answer. `async with message:` acks when the block succeeds and nacks when it raises.
    Call the verbs from the event loop's own thread, or in a handler that runs in a thread.

    Streams make messages. One that is made by hand is settled through its `subscription`, which
    must be open; for tests of handlers see `penstock.testing.make_message`.
    """

    __slots__ = ("_delivery", "_owner", "_received", "_settled")

    _delivery: Delivery
    _owner: Owner
    _received: float
    _settled: bool

    def __init__(
        self,
        id: str,
        ack_id: str,
        data: bytes,
        attributes: Mapping[str, str],
        publish_time: datetime,
        subscription: Owner,
        ordering_key: str | None = None,
        *,
        delivery_attempt: int = 1,
        subject: str = "",
    ) -> None:
        if not isinstance(publish_time, datetime) or publish_time.tzinfo is None:
            raise InvalidArgumentError(
                f"publish_time must be an aware datetime (with a time zone), not {publish_time!r}"
            )
        record = Record(
            sequence=0,
            message_id=id,
            data=_as_bytes(data),
            attributes=dict(attributes),
            ordering_key=ordering_key,
            subject=subject,
            publish_time_ns=to_ns(publish_time),
        )
        self._delivery = Delivery(record, ack_id, delivery_attempt, MAX_ACK_DEADLINE)
        self._owner = subscription
        self._received = Clock().time_ns() / NS
        self._settled = False

    @staticmethod
    def of(deliveries: Sequence[Delivery], owner: Owner, received: float) -> list[Message]:
        """The messages of deliveries: what a stream makes, past `__init__` and its checks."""
        messages = []
        new = Message.__new__
        for delivery in deliveries:
            message = new(Message)
            message._delivery = delivery
            message._owner = owner
            message._received = received
            message._settled = False
            messages.append(message)
        return messages

    @property
    def id(self) -> str:
        return self._delivery.record.message_id

    @property
    def ack_id(self) -> str:
        """Names this delivery; a redelivery has another."""
        return self._delivery.ack_id

    @property
    def data(self) -> bytes:
        return self._delivery.record.data

    @property
    def attributes(self) -> Attributes:
        """A read-only dict."""
        return Attributes(self._delivery.record.attributes)

    @property
    def publish_time(self) -> PreciseTime:
        """When the broker stored it, to the nanosecond."""
        return PreciseTime.from_ns(self._delivery.record.publish_time_ns)

    @property
    def received(self) -> float:
        """When this client received it, in seconds since the epoch."""
        return self._received

    @property
    def ordering_key(self) -> str | None:
        return self._delivery.record.ordering_key

    @property
    def subject(self) -> str:
        return self._delivery.record.subject

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery, one more after each nack or missed deadline; 0 where the broker
        does not count."""
        return self._delivery.delivery_attempt

    @property
    def length(self) -> int:
        """Bytes of `data`."""
        return len(self._delivery.record.data)

    def __len__(self) -> int:
        return len(self._delivery.record.data)

    def __bool__(self) -> bool:
        return True

    def ack(self) -> None:
        """Done: it will not come again. No effect once settled."""
        if not self._settled:
            self._owner.settle(self, _ACK, None)
            self._settled = True

    def nack(self, delay: float | None = None) -> None:
        """Bring it back, at once or as the retry policy says, or after `delay` seconds."""
        if delay is not None:
            delay = check_ack_deadline(delay)
        if not self._settled:
            self._owner.settle(self, _NACK, delay)
            self._settled = True

    def reject(self) -> None:
        """Never again: to the dead letters if the subscription has any, else dropped."""
        if not self._settled:
            self._owner.settle(self, Verb.REJECT, None)
            self._settled = True

    def modify_ack_deadline(self, seconds: float) -> None:
        """Ours for `seconds` (0 to 600) from now; 0 is a nack. No effect once settled."""
        seconds = check_ack_deadline(seconds)
        if seconds == 0:
            self.nack()
        elif not self._settled:
            self._owner.modify_ack_deadline(self, seconds)

    async def ack_with_response(self) -> AckResponse:
        """Ack and wait for the outcome.

        With exactly-once delivery, SUCCESS means it will never come again and INVALID that this
        delivery was settled before or is no longer ours. Without it the answer is SUCCESS.
        """
        return await self._settle_with_response(_ACK)

    async def nack_with_response(self) -> AckResponse:
        """Nack and wait for the outcome; the codes are those of `ack_with_response`."""
        return await self._settle_with_response(_NACK)

    def _settle_with_response(self, verb: Verb) -> Awaitable[AckResponse]:
        first, self._settled = not self._settled, True
        return self._owner.settle_with_response(self, verb, first=first)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.ack()
        else:
            self.nack()

    def __repr__(self) -> str:
        return (
            f"<Message {self.id!r}, {self.length} bytes, attempt {self.delivery_attempt}"
            f"{', settled' if self._settled else ''}>"
        )


def check_ack_deadline(seconds: float, *, least: float = 0) -> float:
    """`seconds` as a float within `least` to 600, or `InvalidArgumentError`."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgumentError(
            f"Ack deadline must be a number of seconds, not {type(seconds).__name__}"
        )
    if not least <= seconds <= MAX_ACK_DEADLINE:
        raise InvalidArgumentError(
            f"Ack deadline must be between {least:g} and 600 seconds, not {seconds!r}"
        )
    return float(seconds)


def _as_bytes(data: object) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    hint = "; encode it first: text.encode()" if isinstance(data, str) else ""
    raise InvalidArgumentError(f"Message data must be bytes, not {type(data).__name__}{hint}")


def _checked_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(attributes, Mapping):
        raise InvalidArgumentError(
            f"Attributes must be a mapping of text to text, not {type(attributes).__name__}"
        )
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidArgumentError(
            f"A message has at most {MAX_ATTRIBUTES} attributes, not {len(attributes)}"
        )
    checked = dict(attributes)
    if _are_plain(checked):
        return checked
    for key, value in checked.items():
        if not _is_plain(key, MAX_ATTRIBUTE_KEY_BYTES):
            check_text("Attribute key", key, MAX_ATTRIBUTE_KEY_BYTES)
        if not key or (key.startswith("goog") and not key.startswith(_GOOGLE_CLIENTS)):
            raise InvalidArgumentError(
                f"Attribute key {key!r} is not allowed: it must not be empty or start with 'goog'"
            )
        if not _is_plain(value, MAX_ATTRIBUTE_VALUE_BYTES):
            check_text(f"Value of attribute {key!r}", value, MAX_ATTRIBUTE_VALUE_BYTES)
    return checked


def _are_plain(attributes: dict[str, str]) -> bool:
    """What nearly all attributes are, found out at once: together no longer than one may be."""
    try:
        text = _all_text(attributes)
    except TypeError:
        return False
    plain = _is_plain(text, MAX_ATTRIBUTE_KEY_BYTES)
    return plain and "" not in attributes and "goog" not in text


def _all_text(attributes: Mapping[str, str]) -> str:
    return "".join(chain.from_iterable(attributes.items()))


def _is_plain(text: object, limit: int) -> bool:
    """What nearly all text is, found out in a quarter of the time: nothing is wrong with it."""
    return isinstance(text, str) and len(text) <= limit and text.isascii() and text.isprintable()


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


def check_text(what: str, text: object, limit: int) -> None:
    """Text that may travel in a header: no control characters, and no longer than that."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{what} must be text, not {type(text).__name__}")
    if found := _control_character(text):
        raise InvalidArgumentError(
            f"{what} has the control character {found[0]!r} at position {found.start()}; remove it"
        )
    try:
        size = _bytes_of(text)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} is not valid text: {error.reason}") from None
    if size > limit:
        raise InvalidArgumentError(f"{what} is {size} bytes long; at most {limit} are allowed")


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
