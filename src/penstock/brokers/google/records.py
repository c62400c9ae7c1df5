"""Messages between our form and Google's.

Google gives messages ids of its own, has no subjects, and refuses a message with neither data nor
attributes. What it cannot carry goes with the message in attributes that begin with `x-penstock-`.
"""

from __future__ import annotations

from typing import Any

from penstock.clock import NS
from penstock.errors import InvalidArgumentError, PenstockError, UnimplementedError
from penstock.message import Draft, Record

_RESERVED = "x-penstock-"
_ID, _SUBJECT, _EMPTY = "x-penstock-id", "x-penstock-subject", "x-penstock-empty"
# Field tags and lengths of a message and its attributes, at most.
_FRAME = 64


def refusal_of(topic: str, draft: Draft) -> PenstockError | None:
    """Why Google cannot be given a draft, if it cannot."""
    if draft.expect is not None:
        return UnimplementedError(f"Topic {topic!r}: Google Pub/Sub checks no expectations")
    if draft.ttl is not None:
        return UnimplementedError(f"Topic {topic!r}: Google Pub/Sub keeps no time to live")
    for key in draft.attributes:
        if key.startswith(_RESERVED):
            return InvalidArgumentError(
                f"Attribute {key!r} is reserved: keys must not begin with {_RESERVED!r}"
            )
    return None


def size_of(draft: Draft) -> int:
    """Bytes in a request, or a little more."""
    size = _FRAME + len(draft.data)
    for key, value in draft.attributes.items():
        size += 4 * (len(key) + len(value)) + _FRAME
    for text in (draft.ordering_key, draft.message_id, draft.subject):
        if text is not None:
            size += 4 * len(text) + _FRAME
    return size


def write_draft(message: Any, draft: Draft, topic: str) -> None:
    attributes = message.attributes
    if draft.attributes:
        attributes.update(draft.attributes)
    if draft.message_id is not None:
        attributes[_ID] = draft.message_id
    if draft.subject is not None and draft.subject != topic:
        attributes[_SUBJECT] = draft.subject
    if draft.data:
        message.data = draft.data
    elif not attributes:
        attributes[_EMPTY] = "1"
    if draft.ordering_key is not None:
        message.ordering_key = draft.ordering_key


def read_record(message: Any, topic: str, sequence: int) -> Record:
    """`sequence`: in the order of arrival, where order matters; Google has none to offer."""
    attributes: dict[str, str] = {}
    message_id, subject = message.message_id, topic
    if message.attributes:
        attributes.update(message.attributes)
        message_id = attributes.pop(_ID, message_id)
        subject = attributes.pop(_SUBJECT, topic)
        attributes.pop(_EMPTY, None)
    published = message.publish_time
    return Record(
        sequence,
        message_id,
        message.data,
        attributes,
        message.ordering_key or None,
        subject,
        published.seconds * NS + published.nanos,
    )
