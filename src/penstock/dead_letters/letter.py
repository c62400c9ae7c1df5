"""A dead letter: a message that was given up, and why. One set of attributes for every broker.

Whoever gives a message up publishes its bytes unchanged, its attributes and these:

    dead-letter-reason          a few words, to filter by
    dead-letter-error           what was raised, if something was
    dead-letter-attempt         the delivery that was the last
    dead-letter-topic, -subscription, -message-id, -published       where it came from
    dead-letter-subject         where in the topic, if its place was not the topic's own to say
    dead-letter-time            when it was given up
    dead-letter-dropped         how many of its own attributes found no room, if any did not
    dead-letter-cut             how many bytes at its end found no room, if any did not

What a broker moves by its own policy carries `CloudPubSubDeadLetterSource…` instead, and what
another implementation of the bridge gives up `x-dead-letter` and `x-dlq-…`; all are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import Struct

from penstock.clock import PreciseTime, to_ns
from penstock.message import (
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    Draft,
    Message,
    Record,
)
from penstock.rules.derived_ids import derived_id

PREFIX = "dead-letter-"
REASON = "dead-letter-reason"
ERROR = "dead-letter-error"
ATTEMPT = "dead-letter-attempt"
TOPIC = "dead-letter-topic"
SUBSCRIPTION = "dead-letter-subscription"
MESSAGE_ID = "dead-letter-message-id"
PUBLISHED = "dead-letter-published"
TIME = "dead-letter-time"
DROPPED = "dead-letter-dropped"
CUT = "dead-letter-cut"
SUBJECT = "dead-letter-subject"
BRIDGE_MARK, BRIDGE_REASON = "x-dead-letter", "x-dlq-reason"
BRIDGE_DELIVERIES, BRIDGE_CONTEXT = "x-deliveries", "x-dlq-context"
_BRIDGES_OWN = {BRIDGE_MARK, BRIDGE_REASON, BRIDGE_DELIVERIES, BRIDGE_CONTEXT}
BROKERS_OWN = "CloudPubSubDeadLetterSource"
# One of these is on every letter, whoever wrote it; what has none was put there by hand.
_SIGNS = (REASON, BRIDGE_MARK, f"{BROKERS_OWN}Subscription")
ONLY_LETTERS = " OR ".join(f"attributes:{sign}" for sign in _SIGNS)
# What a broker's own policy means, in the words of `dead-letter-reason`.
MOVED_BY_BROKER = "max-delivery-attempts"

_REASON_BYTES = 256
# What a broker may write around attributes: four bytes each in NATS, an id and an ordering key.
_AROUND_EACH, _AROUND_ALL = 8, 4096
_control_characters = re.compile(r"[\x00-\x1f\x7f]+")


class Origin(Struct, frozen=True, kw_only=True):
    """Where a dead letter came from, as far as it is known."""

    topic: str | None = None
    subscription: str | None = None
    message_id: str | None = None
    published: datetime | None = None
    subject: str | None = None


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A message that was given up, as its topic's log holds it.

    `sequence` names it within `topic`. `attributes` are the message's own. `stored_ns`: when the
    log got it. `settled` says what was done about it since: 'replayed', 'discarded', or None.
    `cut`: how many bytes are missing at the end of its data, because a letter is larger than its
    message and the broker refused it whole. `by_hand`: nothing about it says that it was given up,
    so that somebody put it there, or this is no topic of dead letters at all.
    """

    topic: str
    sequence: int
    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str | None
    reason: str
    error: str | None
    attempt: int
    origin: Origin
    time: datetime
    stored_ns: int
    settled: str | None = None
    cut: int = 0
    by_hand: bool = False

    def __repr__(self) -> str:
        return f"<DeadLetter {self.sequence} of {self.topic!r}: {self.reason}>"


def letter_of(
    data: bytes,
    attributes: Mapping[str, str],
    *,
    origin: Origin,
    attempt: int,
    reason: str,
    time_ns: int,
    error: BaseException | str | None = None,
    ordering_key: str | None = None,
    message_id: str | None = None,
) -> Draft:
    """The draft that makes a dead letter of a message. The same one from whoever gives it up: its
    id follows from the origin, unless they have an id for it that does so as well."""
    ours = {
        REASON: header_text(reason, _REASON_BYTES) or "unknown",
        ATTEMPT: str(attempt),
        TIME: PreciseTime.from_ns(time_ns).isoformat(),
    }
    known = {
        TOPIC: origin.topic,
        SUBSCRIPTION: origin.subscription,
        MESSAGE_ID: header_text(origin.message_id or "", MAX_ATTRIBUTE_VALUE_BYTES),
        PUBLISHED: origin.published and origin.published.isoformat(),
    }
    ours |= {name: text for name, text in known.items() if text}
    if error is not None:
        ours[ERROR] = header_text(error_text(error), MAX_ATTRIBUTE_VALUE_BYTES)
    return Draft(data, _joined(attributes, ours), ordering_key, message_id or _id_of_letter(origin))


def letter_of_message(
    message: Message,
    *,
    topic: str,
    subscription: str,
    reason: str,
    time_ns: int,
    error: BaseException | str | None = None,
    attempt: int | None = None,
) -> Draft:
    """`letter_of`, for whoever has the message in hand. `attempt`: unless it is the broker's."""
    return letter_of(
        message.data,
        message.attributes,
        origin=Origin(
            topic=topic,
            subscription=subscription,
            message_id=message.id,
            published=message.publish_time,
        ),
        attempt=message.delivery_attempt if attempt is None else attempt,
        reason=reason,
        error=error,
        time_ns=time_ns,
        ordering_key=message.ordering_key,
    )


def _id_of_letter(origin: Origin) -> str:
    # With the time of publication: an id that a publisher used again is another message.
    published_ns = 0 if origin.published is None else to_ns(origin.published)
    return derived_id(
        "dead",
        origin.topic or "",
        origin.subscription or "",
        origin.message_id or "",
        published_ns,
    )


def bare(letter: Draft) -> Draft:
    """The same letter without the message's own attributes, for a broker that refused it: better
    that than nothing."""
    ours = {key: value for key, value in letter.attributes.items() if key.startswith(PREFIX)}
    already = int(ours.get(DROPPED, "0"))
    ours[DROPPED] = str(len(letter.attributes) - len(ours) + already)
    return Draft(letter.data, ours, letter.ordering_key, letter.message_id)


def cut(letter: Draft) -> Draft:
    """A bare letter without the end of its data, for a broker that refused that too: as much
    shorter as its attributes are long, since the message itself once found room."""
    ours = {**letter.attributes, CUT: str(len(letter.data))}
    added = sum(len(key) + len(value.encode()) + _AROUND_EACH for key, value in ours.items())
    kept = letter.data[: max(len(letter.data) - added - _AROUND_ALL, 0)]
    ours[CUT] = str(len(letter.data) - len(kept))
    return Draft(kept, ours, letter.ordering_key, letter.message_id)


def read_letter(topic: str, record: Record, settled: str | None = None) -> DeadLetter:
    """A record of a dead-letter topic, whoever put it there."""
    attributes = record.attributes
    brokers_own = f"{BROKERS_OWN}Subscription" in attributes and REASON not in attributes
    own = {
        key: value
        for key, value in attributes.items()
        if not key.startswith(PREFIX)
        and key not in _BRIDGES_OWN
        and not (brokers_own and key.startswith(BROKERS_OWN))
    }
    if brokers_own:
        story = _told_by_broker(attributes)
    elif BRIDGE_MARK in attributes and REASON not in attributes:
        story = _told_by_bridge(attributes)
    else:
        story = _told_by_us(attributes)
    return DeadLetter(
        topic=topic,
        sequence=record.sequence,
        data=record.data,
        attributes=own,
        ordering_key=record.ordering_key,
        reason=story.reason,
        error=story.error,
        attempt=_count(story.attempt),
        origin=story.origin,
        time=_moment(attributes.get(TIME)) or PreciseTime.from_ns(record.publish_time_ns),
        stored_ns=record.publish_time_ns,
        settled=settled,
        cut=_count(attributes.get(CUT)),
        by_hand=not any(sign in attributes for sign in _SIGNS),
    )


def _count(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


class _Story(Struct, frozen=True):
    """Why, how often, and from where."""

    reason: str
    error: str | None
    attempt: str | None
    origin: Origin


def _told_by_us(attributes: Mapping[str, str]) -> _Story:
    get = attributes.get
    origin = Origin(
        topic=get(TOPIC),
        subscription=get(SUBSCRIPTION),
        message_id=get(MESSAGE_ID),
        published=_moment(get(PUBLISHED)),
        subject=get(SUBJECT),
    )
    return _Story(get(REASON, "unknown"), get(ERROR), get(ATTEMPT), origin)


def _told_by_broker(attributes: Mapping[str, str]) -> _Story:
    get = attributes.get
    origin = Origin(
        subscription=get(f"{BROKERS_OWN}Subscription"),
        published=_moment(get(f"{BROKERS_OWN}TopicPublishTime")),
    )
    return _Story(MOVED_BY_BROKER, None, get(f"{BROKERS_OWN}DeliveryCount"), origin)


class _BridgeContext(Struct):
    event_id: str | None = None
    error_class: str | None = None
    error_message: str | None = None
    original_subject: str | None = None
    consumer: str | None = None
    stream: str | None = None


def _told_by_bridge(attributes: Mapping[str, str]) -> _Story:
    try:
        context = msgspec.json.decode(attributes.get(BRIDGE_CONTEXT, "{}"), type=_BridgeContext)
    except msgspec.MsgspecError:
        context = _BridgeContext()
    error = ": ".join(filter(None, (context.error_class, context.error_message))) or None
    origin = Origin(
        # Without its subject it cannot go back to where it was.
        topic=context.stream if context.original_subject else None,
        subscription=context.consumer,
        message_id=context.event_id,
        subject=context.original_subject,
    )
    reason = attributes.get(BRIDGE_REASON, "unknown")
    return _Story(reason, error, attributes.get(BRIDGE_DELIVERIES), origin)


def error_text(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error
    try:
        text = str(error)
    except Exception:
        text = "(its text could not be made)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def header_text(text: str, limit: int) -> str:
    """Text as an attribute may carry it: control characters are spaces, the end is cut."""
    clean = _control_characters.sub(" ", text).strip()
    encoded = clean.encode(errors="replace")
    if len(encoded) <= limit:
        return encoded.decode()
    ellipsis = "…".encode()
    return (encoded[: limit - len(ellipsis)] + ellipsis).decode(errors="ignore")


def _joined(own: Mapping[str, str], ours: dict[str, str]) -> dict[str, str]:
    """Both, ours winning; a message that has nearly all it may have loses its last ones."""
    kept = {key: value for key, value in own.items() if not key.startswith(PREFIX)}
    room = MAX_ATTRIBUTES - len(ours)
    if len(kept) > room:
        dropped = len(kept) - (room - 1)
        kept = dict(list(kept.items())[: room - 1])
        ours = {**ours, DROPPED: str(dropped)}
    return {**kept, **ours}


def _moment(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        whole, _, below = text.partition(".")
        digits = re.match(r"\d*", below)
        nanoseconds = (digits[0] if digits else "").ljust(9, "0")[:9]
        seconds = datetime.fromisoformat(f"{whole[:19]}+00:00").timestamp()
        return PreciseTime.from_ns(int(seconds) * 1_000_000_000 + int(nanoseconds))
    except ValueError:
        return None
