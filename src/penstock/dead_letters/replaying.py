"""A dead letter as a message again: a new id, the old one kept, and for whom it is meant."""

from __future__ import annotations

from penstock.dead_letters.letter import DeadLetter
from penstock.message import Draft
from penstock.rules.derived_ids import derived_id

REPLAY_OF = "replay-of"
"""The id under which the message was first published."""
REPLAY_FOR = "replay-for"
"""The subscription that gave it up: an app's other subscriptions of the topic skip it."""


def replayed(letter: DeadLetter) -> Draft:
    """The draft that sends it again; the same one each time, so that a replay can be repeated."""
    attributes = dict(letter.attributes)
    origin = letter.origin
    if REPLAY_OF not in attributes and origin.message_id:
        attributes[REPLAY_OF] = origin.message_id
    if origin.subscription:
        attributes[REPLAY_FOR] = origin.subscription
    return Draft(
        letter.data,
        attributes,
        letter.ordering_key,
        derived_id("replay", letter.topic, letter.sequence, letter.stored_ns),
        origin.subject,
    )
