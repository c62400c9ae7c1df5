"""What became of the messages of `test_promises.py`: told from the diaries of its processes, the
topic's log, and what a lone server had written down of acks whenever it was killed."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from penstock.message import Record

# Nanoseconds after a killed server is started again in which somebody may still write down what the
# one before had confirmed, because nobody let him run.
LATE = 5 * 10**8
_STORIES = 12


class Line(NamedTuple):
    """Of a diary: when, what, of which message, and by whom."""

    at: int
    what: str
    who: str
    about: str
    writer: str


def read_diary(path: Path) -> list[Line]:
    text = path.read_text() if path.exists() else ""
    parts = [line.split(maxsplit=3) for line in text.splitlines()]
    return [Line(int(at), what, who, " ".join(about), path.stem) for at, what, who, *about in parts]


class KeptAcks(NamedTuple):
    """What a server that starts from its files knows of the acks of a consumer."""

    floor: int
    delivered: int
    pending: frozenset[int]

    @classmethod
    def read(cls, path: Path) -> KeptAcks:
        """From a consumer's `o.dat`: two bytes of header; ack floor and last delivered, each as
        sequence of consumer and stream; how many are pending and, if any, a time, and for each its
        two sequences beyond the floor's and its age."""
        numbers = _varints(path.read_bytes()[2:])
        _, floor, _, delivered, count, *rest = numbers
        pending = rest[1 : 1 + 3 * count : 3]
        return cls(floor, delivered, frozenset(floor + beyond for beyond in pending))

    def has(self, sequence: int) -> bool:
        """It will not be delivered again."""
        return sequence <= self.floor or (
            sequence <= self.delivered and sequence not in self.pending
        )


class Kill(NamedTuple):
    """The end of a server: asked for, seen, and the moment when it was about to be started again.
    `kept`: what it had written down of acks, if it had nobody to remember for it."""

    began: int
    ended: int
    back: int
    kept: KeptAcks | None

    def forgot(self, sequence: int, done: int, again: int) -> bool:
        """It had confirmed this ack to somebody and not kept it: one that was done by then, and
        was begun again since."""
        in_its_time = done < self.back + LATE and self.ended < again
        return in_its_time and self.kept is not None and not self.kept.has(sequence)


@dataclass
class Counts:
    """Messages by what became of them; `suspects` are those with a story that should not be."""

    acked: int = 0
    missing: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stored_twice: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    @property
    def suspects(self) -> list[str]:
        lists = self.missing, self.doubled, self.stored_twice, self.out_of_order, self.failed
        return list(dict.fromkeys(who for some in lists for who in some))


def count(lines: Sequence[Line], records: Sequence[Record], kills: Sequence[Kill]) -> Counts:
    """`lines` of all diaries, in the order of time."""
    places: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        places[record.data.decode()].append(record)
    begun = {line.who for line in lines if line.what == "begun"}
    acked = {line.who for line in lines if line.what == "acked"}
    counts = Counts(acked=len(acked))
    counts.missing = sorted(acked - begun | acked - places.keys())
    counts.stored_twice = [who for who, where in places.items() if len(where) > 1]
    counts.failed = [line.who for line in lines if line.what.startswith("failed")]
    latest: dict[str | None, int] = defaultdict(int)
    done: dict[str, int] = {}
    for line in lines:
        if line.what == "done":
            done[line.who] = line.at
        elif line.what == "begun":
            record = places[line.who][-1]
            since = done.get(line.who)
            if since is not None:
                if any(kill.forgot(record.sequence, since, line.at) for kill in kills):
                    counts.forgotten.append(line.who)
                    continue
                counts.doubled.append(line.who)
            if record.sequence < latest[record.ordering_key]:
                counts.out_of_order.append(line.who)
            latest[record.ordering_key] = max(latest[record.ordering_key], record.sequence)
    return counts


def stories(
    counts: Counts, lines: Sequence[Line], records: Sequence[Record], kills: Sequence[Kill]
) -> str:
    """What the diaries say of the suspects, with the faults of that time between."""
    faults = [line for line in lines if line.writer == "faults"]
    moments = [line.at for line in faults]
    told = []
    for who in counts.suspects[:_STORIES]:
        own = [line for line in lines if line.who == who]
        first = max(bisect_right(moments, own[0].at) - 2, 0) if own else 0
        last = bisect_right(moments, own[-1].at) + 1 if own else 0
        at = [record.sequence for record in records if record.data.decode() == who]
        told.append(f"{who}, stored at {at}:")
        told += [_told(line) for line in sorted([*own, *faults[first:last]])]
        told += [
            f"  a server killed at {kill.ended / 1e9:.3f} had "
            + ("kept its ack" if kill.kept.has(sequence) else "no ack of it")
            for kill in kills
            for sequence in at
            if kill.kept is not None and own and own[0].at < kill.ended < own[-1].at
        ]
    return "\n".join(told)


def _told(line: Line) -> str:
    whom = line.who if line.writer == "faults" else ""
    return f"  {line.at / 1e9:.3f} {line.writer}: {line.what} {whom} {line.about}".rstrip()


def _varints(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return numbers
