"""Offsets: the next sequence to read, by topic, and which topic of its name that is. Pure.

Everything below an offset has been read, so the end of one batch is the start of the next and the
difference of two offsets is how many sequences lie between them. A topic that was deleted and made
again has the same sequences for other messages, so offsets say which one they count in:

    {"@identity": {"orders": "2026-01-02T03:04:05.678Z"}, "orders": 17}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from penstock.broker import Extent
from penstock.errors import FailedPreconditionError

Offsets: TypeAlias = dict[str, int]
"""Sorted by topic: Spark compares offsets as text."""

_LATEST, _EARLIEST = -1, -2
# No topic is called that.
IDENTITY = "@identity"


class Place(NamedTuple):
    """Offsets, and the identities of the topics they count in, as far as those are known: earlier
    versions wrote none, and some brokers have none."""

    at: Offsets
    identities: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """What Spark keeps: the same text for the same place."""
        known = {topic: self.identities.get(topic, "") for topic in sorted(self.at)}
        said = {topic: identity for topic, identity in known.items() if identity}
        return {IDENTITY: said, **self.at} if said else dict(self.at)

    def is_of(self, topic: str, extent: Extent) -> bool:
        """It counts in this very topic, for all that anybody says."""
        return is_same_topic(extent, self.identities.get(topic))


def place_of(offset: Mapping[str, Any]) -> Place:
    """What Spark kept."""
    at = {topic: int(offset[topic]) for topic in sorted(offset) if topic != IDENTITY}
    return Place(at, offset.get(IDENTITY) or {})


def identities_of(extents: Mapping[str, Extent]) -> dict[str, str]:
    return {topic: extent.identity for topic, extent in extents.items()}


@dataclass(frozen=True)
class Position:
    """Where to begin or end: an edge for all topics, sequences or moments by topic, or one
    moment. `strict`: a moment that nothing is as late as is an error, and not the end."""

    edge: int = _EARLIEST
    sequences: Mapping[str, int] = field(default_factory=dict)
    moment_us: int | None = None
    moments_us: Mapping[str, int] = field(default_factory=dict)
    strict: bool = False
    identities: Mapping[str, str] = field(default_factory=dict)
    """Of the topics that its sequences count in, where it is what a query said of its progress."""

    @property
    def topics(self) -> set[str]:
        """Those that it names."""
        return {*self.sequences, *self.moments_us}

    def moment_of(self, topic: str) -> int | None:
        return self.moments_us.get(topic, self.moment_us)

    def of(self, topic: str) -> int:
        """A sequence, or -1 for the latest or -2 for the earliest."""
        return self.sequences.get(topic, self.edge)

    def is_beginning_of(self, topic: str) -> bool:
        """Nothing lies before it, whatever the topic holds."""
        return self.moment_of(topic) is None and self.of(topic) in (_EARLIEST, 1)

    def within(self, topic: str, extent: Extent) -> int:
        """The sequence it means in a topic that holds so much."""
        sequence = self.of(topic)
        if sequence == _EARLIEST:
            return extent.first
        return extent.end if sequence == _LATEST else sequence

    def is_latest_for(self, topics: Iterable[str]) -> bool:
        """It moves with what is published, for some topic."""
        return any(self.moment_of(topic) is None and self.of(topic) == _LATEST for topic in topics)


EARLIEST = Position(_EARLIEST)
LATEST = Position(_LATEST)


def known(start: Mapping[str, int], topics: tuple[str, ...]) -> Offsets:
    """A checkpoint's offsets for these topics; a topic it does not know begins at 1."""
    left = sorted(set(start) - set(topics))
    if left:
        raise FailedPreconditionError(
            f"The checkpoint has read topic {left[0]!r}, which the options no longer name; name "
            "it, or begin with a new checkpoint"
        )
    return {topic: start.get(topic, 1) for topic in sorted(topics)}


def check_not_beyond(topic: str, extent: Extent, end: int, what: str) -> None:
    """Raise when `what` is said to lie beyond the end of a topic."""
    if end > extent.end:
        raise FailedPreconditionError(
            f"Topic {topic!r} ends at {extent.last} and {what} at {end - 1}: was it deleted and "
            "created again? Begin with a new checkpoint"
        )


def is_same_topic(extent: Extent, identity: str | None) -> bool:
    """It is the one of that identity. Nobody can tell where nobody says which it is."""
    return not identity or not extent.identity or identity == extent.identity


def check_same_topic(topic: str, extent: Extent, identity: str) -> None:
    """Raise when a topic is not the one it was."""
    if not is_same_topic(extent, identity):
        raise another_topic(topic)


def check_read_whole(topic: str, extent: Extent, identity: str) -> None:
    """Raise when a topic is not the one that a batch was to read: what was read may be of either.
    The batch is planned anew when it is run again."""
    if not is_same_topic(extent, identity):
        raise FailedPreconditionError(
            f"Topic {topic!r} was deleted and created again while a batch read it. Start the query "
            "again: with whenRecreated=begin it reads the new one from its beginning"
        )


def another_topic(topic: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"Topic {topic!r} was deleted and created again since this query read it: its sequences "
        "are those of other messages now. Set whenRecreated=begin to read the new one from its "
        "beginning, or begin with a new checkpoint"
    )


def advance(
    start: Offsets,
    extents: Mapping[str, Extent],
    max_rows: int | None = None,
    max_bytes: int | None = None,
) -> Offsets:
    """The end of the next batch: as far as the topics go, or each topic's share of the limits.

    Bytes are a forecast from the mean size of a topic's messages.
    """
    left = {topic: max(0, extents[topic].end - at) for topic, at in start.items()}
    rows = sum(left.values())
    share = 1.0
    if max_rows is not None and rows > max_rows:
        share = max_rows / rows
    size = sum(count * extents[topic].mean_bytes for topic, count in left.items())
    if max_bytes is not None and size > max_bytes:
        share = min(share, max_bytes / size)
    if share >= 1.0:
        return {topic: at + left[topic] for topic, at in start.items()}
    taken = {topic: int(count * share) for topic, count in left.items()}
    if not any(taken.values()):
        # At least one row moves, of the topic that waits most.
        taken[max(left, key=lambda topic: left[topic])] = 1
    return {topic: at + taken[topic] for topic, at in start.items()}


def split(
    start: Offsets, end: Offsets, max_records: int, min_partitions: int | None
) -> list[tuple[str, int, int]]:
    """Ranges of about equal size as (topic, first, last), both included. The same for the same
    arguments: a batch that is run again is cut the same way."""
    sizes = {topic: end[topic] - at for topic, at in start.items() if end[topic] > at}
    total = sum(sizes.values())
    largest = max_records
    if min_partitions is not None and total:
        largest = min(largest, -(-total // min_partitions))
    ranges = []
    for topic, size in sizes.items():
        at = start[topic]
        ranges += [(topic, at + low, at + high - 1) for low, high in even_parts(size, largest)]
    return ranges


def even_parts(size: int, largest: int) -> Iterator[tuple[int, int]]:
    """Parts of what has that size, the second number not included, none larger than `largest`."""
    parts = -(-size // largest)
    edges = [size * n // parts for n in range(parts + 1)] if parts else []
    return pairwise(edges)
