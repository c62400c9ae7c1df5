"""A dead letter as a message again: a new id, the old one kept, and for whom it is meant."""

from __future__ import annotations

from penstock.dead_letters.letter import DeadLetter
from penstock.errors import InvalidArgumentError
from penstock.message import Draft
from penstock.rules.derived_ids import derived_id

REPLAY_OF = "replay-of"
"""The id under which the message was first published."""
REPLAY_FOR = "replay-for"
"""The subscription that gave it up: an app's other subscriptions of the topic skip it."""


def replayed(letter: DeadLetter, *, meant_for: str | None) -> Draft:
    """The draft that sends it again, under the same id each time, so that a replay can be repeated.

    `meant_for`: the subscription that alone shall handle it; None for whoever reads it there.
    `InvalidArgumentError` when a part of it is missing: that is another message.
    """
    if letter.cut:
        raise InvalidArgumentError(
            f"Dead letter {letter.sequence} lacks the last {letter.cut:,} bytes of its data, for "
            "which there was no room; publish the message anew, and discard the letter"
        )
    attributes = dict(letter.attributes)
    origin = letter.origin
    attributes.pop(REPLAY_FOR, None)  # Of an earlier replay, which died again.
    if REPLAY_OF not in attributes and origin.message_id:
        attributes[REPLAY_OF] = origin.message_id
    if meant_for is not None:
        attributes[REPLAY_FOR] = meant_for
    return Draft(
        letter.data,
        attributes,
        letter.ordering_key,
        derived_id("replay", letter.topic, letter.sequence, letter.stored_ns),
        origin.subject,
    )
