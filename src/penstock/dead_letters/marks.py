"""Marks: messages in a dead-letter topic that say what was done about letters before them.

A log cannot be changed, and not everybody who may publish may delete. So what was replayed or
discarded is written behind the letters, by whoever did it, and read with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from penstock.message import Draft, Record

MARK = "dead-letter-mark"
ONLY_MARKS = f"attributes:{MARK}"
NO_MARKS = f"NOT attributes:{MARK}"

Deed: TypeAlias = Literal["replayed", "discarded"]

_sequences = msgspec.json.Decoder(list[int])


def mark(deed: Deed, sequences: Sequence[int]) -> Draft:
    return Draft(msgspec.json.encode(list(sequences)), {MARK: deed})


def read_marks(records: Iterable[Record]) -> dict[int, str]:
    """What was done, by the sequence of the letter; the last mark counts."""
    done: dict[int, str] = {}
    for record in records:
        try:
            done.update(dict.fromkeys(_sequences.decode(record.data), record.attributes[MARK]))
        except msgspec.MsgspecError:  # Not ours, whoever wrote it.
            continue
    return done
