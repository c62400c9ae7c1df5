"""What the driver does: where topics begin and end, what is lost, which ranges to read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from penstock.brokers.nats.catalogue import topic_config
from penstock.brokers.nats.sync.ranges import Stream
from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.rules.filters import parse_filter
from penstock.rules.subjects import subject_filters
from penstock.spark.source.door import Door
from penstock.spark.source.offsets import Extent, Offsets, Position, split
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.reader import LogRange, report_loss

# Each subject of a filter is a read of its own; beyond a few, reading everything is cheaper.
_MOST_SUBJECTS = 4
_CONSUMED = "workqueue"
# Making and deleting a consumer takes about as long as reading this many messages directly.
_WORTH_BULK = 1_000


class Planner:
    """The topics of one query, seen from the driver."""

    def __init__(self, options: SourceOptions, *, keep: bool = False) -> None:
        self._options = options
        self._door = Door(options.url, options.server_timeout, keep=keep)
        self._streams = {topic: Stream(topic, self._door.connection) for topic in options.topics}
        self._purged: Offsets = {}
        self._consumed: set[str] | None = None

    def close(self) -> None:
        self._door.close()

    def check(self) -> None:
        """Raise whatever keeps this query from being answered."""
        for topic in self._options.starting.sequences.keys() | self._options.ending.sequences:
            if topic not in self._streams:
                raise InvalidArgumentError(
                    f"The offsets name topic {topic!r}, which is not read; add it to 'topics'"
                )
        for topic, stream in self._streams.items():
            info = stream.info()
            if _is_consumed(info) and self._options.filter:
                raise InvalidArgumentError(
                    f"Topic {topic!r} is a work queue, which is consumed as a whole: leave out "
                    "option 'filter' and filter the rows"
                )

    def extents(self) -> dict[str, Extent]:
        infos = {topic: stream.info() for topic, stream in self._streams.items()}
        if self._consumed is None:
            self._consumed = {topic for topic, info in infos.items() if _is_consumed(info)}
        return {topic: _extent(info) for topic, info in infos.items()}

    def resolve(self, position: Position) -> Offsets:
        """Where a position is in each topic."""
        extents = self.extents()
        if position.moment_us is None:
            return {topic: extents[topic].resolve(position.of(topic)) for topic in sorted(extents)}
        found = {}
        for topic in sorted(extents):
            sequence = self._streams[topic].since(position.moment_us)
            found[topic] = extents[topic].end if sequence is None else sequence
        return found

    def ranges(
        self, start: Offsets, end: Offsets, *, promised: Collection[str] | None = None
    ) -> list[LogRange]:
        """The partitions of a batch. What is gone of the `promised` topics (all of them, unless
        told) is reported."""
        begin = dict(start)
        subjects, lasting = {}, {}
        for topic, stream in self._streams.items():
            info = stream.info()
            extent = _extent(info)
            if end[topic] > extent.end:
                raise FailedPreconditionError(
                    f"Topic {topic!r} ends at {extent.end - 1} and the batch at {end[topic] - 1}: "
                    "was it deleted and created again? Begin with a new checkpoint"
                )
            first = min(extent.first, end[topic])
            if first > start[topic]:
                begin[topic] = first
                is_promised = promised is None or topic in promised
                if is_promised and not _is_compacted(info):
                    report_loss(
                        self._options,
                        f"Topic {topic!r} was to be read from {start[topic]} and begins at "
                        f"{extent.first}: {first - start[topic]} messages are gone",
                    )
            subjects[topic] = self._subjects(topic, info)
            lasting[topic] = info["config"].get("retention") == "limits"
        parts = split(begin, end, self._options.max_records, self._options.min_partitions)
        return [
            LogRange(
                topic, low, high, subjects[topic], lasting[topic] and high - low >= _WORTH_BULK
            )
            for topic, low, high in parts
        ]

    def _subjects(self, topic: str, info: dict[str, Any]) -> tuple[str, ...]:
        if not self._options.filter:
            return ()
        routed = topic_config(info).routed_attributes
        found = subject_filters(topic, routed, parse_filter(self._options.filter))
        return tuple(found) if len(found) <= _MOST_SUBJECTS else ()

    def consume(self, before: Mapping[str, int]) -> None:
        """These offsets are committed: work queues forget what lies below them."""
        if self._consumed is None:
            self.extents()
        for topic in self._consumed or ():
            sequence = before.get(topic, 1)
            if sequence > self._purged.get(topic, 1):
                self._streams[topic].purge(sequence)
                self._purged[topic] = sequence


def _extent(info: dict[str, Any]) -> Extent:
    state = info["state"]
    held = state["messages"]
    return Extent(
        max(state["first_seq"], 1), state["last_seq"] + 1, state["bytes"] / held if held else 0.0
    )


def _is_consumed(info: dict[str, Any]) -> bool:
    return bool(info["config"].get("retention") == _CONSUMED)


def _is_compacted(info: dict[str, Any]) -> bool:
    return bool(info["config"].get("max_msgs_per_subject", -1) > 0)
