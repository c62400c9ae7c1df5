"""A message as it comes to a stage, and the copies that are made of it: kept among the dead letters
for somebody to look at, or put back for a while. Their ids follow from the original's, so that
making one twice is making it once."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from penstock.dead_letters.letter import Origin, letter_of
from penstock.message import MAX_MESSAGE_ID_BYTES, Draft

_AGAIN = re.compile(r"(?s)(.*)\.again-([1-9][0-9]{0,5})")


class Incoming(Struct, frozen=True):
    """A message as its topic has it, whoever brings it. `delivery` counts how often it came.
    `subscription`: the one it came through, if it did."""

    topic: str
    message_id: str
    attributes: Mapping[str, str]
    data: bytes
    delivery: int = 1
    subscription: str | None = None
    published: datetime | None = None

    def __repr__(self) -> str:
        return f"<Incoming {self.message_id!r} of {self.topic!r}>"

    @property
    def original_id(self) -> str:
        """Its id before it was put back for the first time."""
        put_back = _AGAIN.fullmatch(self.message_id)
        return put_back[1] if put_back else self.message_id

    @property
    def times_put_back(self) -> int:
        put_back = _AGAIN.fullmatch(self.message_id)
        return int(put_back[2]) if put_back else 0


def dead_letter(message: Incoming, reason: str, attempt: int) -> Draft:
    """The message as it came, to be kept among the dead letters, and why."""
    return letter_of(
        message.data,
        message.attributes,
        origin=Origin(
            topic=message.topic,
            subscription=message.subscription,
            message_id=message.original_id,
            published=message.published,
        ),
        attempt=attempt,
        reason=reason,
        time_ns=time.time_ns(),
        message_id=_id_of_copy(message, "dead"),
    )


def put_back(message: Incoming) -> Draft:
    """The message as it came, to be looked at once more."""
    new_id = _id_of_copy(message, f"again-{message.times_put_back + 1}")
    return Draft.of(message.data, message.attributes, message_id=new_id)


def _id_of_copy(message: Incoming, mark: str) -> str:
    original = message.original_id
    if len(original.encode()) + len(mark) + 1 > MAX_MESSAGE_ID_BYTES:
        # Cut, two long ids might become one, and the second message a duplicate.
        original = hashlib.sha256(original.encode()).hexdigest()
    return f"{original}.{mark}"
