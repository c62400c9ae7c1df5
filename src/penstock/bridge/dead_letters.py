"""Dead letters of a bridge: the message as it was, with headers that say why it was given up.

They carry what other implementations of the bridge write (`x-dead-letter`, `x-dlq-…`) and what all
dead letters of Penstock do, so that either side's tools read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.bridge.naming import Names
from penstock.bridge.outcomes import GivenUp
from penstock.dead_letters.letter import (
    ATTEMPT,
    BRIDGE_CONTEXT,
    BRIDGE_DELIVERIES,
    BRIDGE_MARK,
    BRIDGE_REASON,
    PREFIX,
    REASON,
    SUBJECT,
    SUBSCRIPTION,
    TOPIC,
    header_text,
    letter_of_message,
)
from penstock.message import MAX_ATTRIBUTE_VALUE_BYTES, MAX_ATTRIBUTES, Draft, Message

_LONGEST_MESSAGE = 400


def dead_letter(
    message: Message, event_id: str, given_up: GivenUp, names: Names, now_ns: int
) -> Draft:
    """The draft that keeps a message that was given up. The same one from whoever does it."""
    letter = letter_of_message(
        message,
        topic=names.stream_name,
        subscription=names.durable,
        reason=given_up.reason,
        error=given_up.error,
        time_ns=now_ns,
    )
    ours = {
        **{key: value for key, value in letter.attributes.items() if key.startswith(PREFIX)},
        SUBJECT: message.subject,
        BRIDGE_MARK: "true",
        BRIDGE_REASON: given_up.reason,
        BRIDGE_DELIVERIES: str(message.delivery_attempt),
        BRIDGE_CONTEXT: _context(message, event_id, given_up, names),
    }
    own = {key: value for key, value in letter.attributes.items() if key not in ours}
    if len(own) + len(ours) > MAX_ATTRIBUTES:
        own = {}
    return Draft(
        letter.data, {**own, **ours}, letter.ordering_key, letter.message_id, names.dlq_subject
    )


def smaller(letter: Draft) -> list[Draft]:
    """The same letter with ever fewer headers, for a broker that has no room for more. The last has
    none, and fits wherever the message itself did."""
    kept = (REASON, ATTEMPT, TOPIC, SUBSCRIPTION, SUBJECT, BRIDGE_MARK, BRIDGE_REASON)
    few = {key: letter.attributes[key] for key in kept if key in letter.attributes}
    return [
        Draft(letter.data, few, None, letter.message_id, letter.subject),
        Draft(letter.data, subject=letter.subject),
    ]


def _context(message: Message, event_id: str, given_up: GivenUp, names: Names) -> str:
    error = given_up.error
    context: dict[str, Any] = {
        "event_id": event_id,
        "reason": given_up.reason,
        "error_class": type(error).__name__ if error is not None else None,
        "error_message": _message(error),
        "deliveries": message.delivery_attempt,
        "original_subject": message.subject,
        "sequence": {"stream": message._delivery.record.sequence, "consumer": None},
        "consumer": names.durable,
        "stream": names.stream_name,
        "published_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    written = _written(context)
    if len(written) > MAX_ATTRIBUTE_VALUE_BYTES:
        written = _written({**context, "error_message": None, "event_id": event_id[:200]})
    return written


def _message(error: Exception | None) -> str | None:
    return None if error is None else header_text(str(error), _LONGEST_MESSAGE)


def _written(context: Mapping[str, Any]) -> str:
    """In ASCII: a header is bytes, and not everybody reads them as UTF-8."""
    text = msgspec.json.encode(context).decode()
    return text if text.isascii() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character.isascii():
        return character
    pair = character.encode("utf-16-be").hex()
    return "".join(f"\\u{pair[at : at + 4]}" for at in range(0, len(pair), 4))
