"""What the driver does: where topics begin and end, what is lost, which ranges to read."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import groupby

from penstock.broker import Extent, RangeLog
from penstock.errors import FailedPreconditionError, InvalidArgumentError, PenstockError
from penstock.retrying import is_retryable
from penstock.spark.loss import report_loss
from penstock.spark.options import SourceOptions
from penstock.spark.source.choice import is_matched, matching
from penstock.spark.source.offsets import (
    Offsets,
    Place,
    Position,
    another_topic,
    check_not_beyond,
    check_same_topic,
    even_parts,
    split,
)
from penstock.spark.source.reader import LogRange, columns_of

_log = logging.getLogger("penstock")
_NOBODY: Mapping[str, str] = {}


class Planner:
    """The topics of one query, seen from the driver. Closes the log it is given.

    `topics` are those of the options, or those that match now: with a pattern more may come.
    """

    def __init__(self, options: SourceOptions, log: RangeLog) -> None:
        self._options = options
        self._log = log
        self._identities: dict[str, str] = {}
        self._begun: dict[str, str] = {}
        self._purged: Offsets = {}
        self._queues: set[str] | None = None
        self.topics = options.topics
        if options.pattern:
            self.topics = matching(options.url, options.pattern)

    def close(self) -> None:
        self._log.close()

    def check(self) -> None:
        """Raise whatever keeps this query from being answered."""
        for topic in self._options.starting.topics | self._options.ending.topics:
            if topic not in self.topics:
                raise InvalidArgumentError(
                    f"The offsets name topic {topic!r}, which is not read; add it to 'topics'"
                )
        for topic, extent in self.extents().items():
            if extent.is_queue and self._options.filter:
                raise InvalidArgumentError(
                    f"Topic {topic!r} is a work queue, which is consumed as a whole: leave out "
                    "option 'filter' and filter the rows"
                )

    def extents(self) -> dict[str, Extent]:
        """What the topics hold now. They must be the same topics each time, unless those that are
        made again are to be read."""
        extents = {topic: self._log.extent(topic) for topic in self.topics}
        for topic, extent in extents.items():
            known = self._identities.setdefault(topic, extent.identity)
            if not self._options.begins_again:
                check_same_topic(topic, extent, known)
        self._queues = {topic for topic, extent in extents.items() if extent.is_queue}
        return extents

    def find_more(self, told: Collection[str]) -> None:
        """Look for topics that a pattern matches by now. Those that offsets tell of count too: one
        that is gone is missed, and not forgotten."""
        options = self._options
        if options.pattern:
            left = {topic for topic in told if is_matched(topic, options.pattern)}
            self.topics = tuple(sorted({*self._matching(), *self.topics, *left}))

    def _matching(self) -> Collection[str]:
        try:
            return matching(self._options.url, self._options.pattern)
        except PenstockError as error:
            if not is_retryable(error):
                raise
            # Whoever reads is patient with a broker that is away; new topics can wait.
            return ()

    def resolve(self, position: Position) -> Offsets:
        """Where a position is in each topic."""
        extents = self.extents()
        at = {topic: self._place(position, topic, extents[topic]) for topic in sorted(extents)}
        return self.begin(Place(at, position.identities), extents)

    def _place(self, position: Position, topic: str, extent: Extent) -> int:
        moment = position.moment_of(topic)
        if moment is None:
            return position.within(topic, extent)
        sequence = self._log.first_since(topic, moment)
        if sequence is None and position.strict:
            raise FailedPreconditionError(
                f"Topic {topic!r} has no message as late as {moment // 1000} ms; give an earlier "
                "time, or set startingOffsetsByTimestampStrategy=latest to begin with what comes"
            )
        return extent.end if sequence is None else sequence

    def begin(self, place: Place, extents: Mapping[str, Extent]) -> Offsets:
        """Where reading goes on. A topic that was deleted and made again is read from its
        beginning, or is an error, as the options say."""
        at = dict(place.at)
        for topic in at:
            extent = extents[topic]
            if place.is_of(topic, extent):
                continue
            if not self._options.begins_again:
                raise another_topic(topic)
            if self._begun.get(topic) != extent.identity:
                self._tell_begun(topic, extent)
            at[topic] = extent.first
        return at

    def _tell_begun(self, topic: str, extent: Extent) -> None:
        self._begun[topic] = extent.identity
        self._purged.pop(topic, None)
        _log.warning(
            "Topic %r was deleted and created again since this query read it; what it held is "
            "gone, and it is read from its beginning, %d",
            *(topic, extent.first),
        )

    def check_reached(self, start: Offsets) -> None:
        """Raise if a stream was to begin beyond the end of a topic: batches could not be planned,
        and its checkpoint would say so for ever."""
        for topic, extent in self.extents().items():
            if start[topic] > extent.end:
                raise InvalidArgumentError(
                    f"The stream begins at {start[topic]}, and the next message of topic {topic!r} "
                    f"will be {extent.end}; give a sequence that is there, or 'latest'"
                )

    def ranges(
        self,
        start: Offsets,
        end: Offsets,
        *,
        promised: Collection[str] | None = None,
        extents: Mapping[str, Extent] | None = None,
    ) -> list[LogRange]:
        """The partitions of a batch. What is gone of the `promised` topics (all of them, unless
        told) is reported. `extents`: what the topics hold, if somebody has just looked."""
        begin = dict(start)
        extents = extents or self.extents()
        for topic in start:
            extent = extents[topic]
            check_not_beyond(topic, extent, end[topic], "the batch ends")
            first = min(extent.first, end[topic])
            if first > start[topic]:
                begin[topic] = first
                is_promised = promised is None or topic in promised
                if is_promised and not extent.is_compacted:
                    report_loss(
                        self._options,
                        f"Topic {topic!r} was to be read from {start[topic]} and begins at "
                        f"{extent.first}: {first - start[topic]} messages are gone",
                    )
        parts = split(begin, end, self._options.max_records, self._options.min_partitions)
        return [LogRange(topic, low, high, extents[topic].identity) for topic, low, high in parts]

    def between(self, start: Place, end: Place, *, promised: Collection[str]) -> list[LogRange]:
        """The partitions of a batch of a stream. Of a topic that was made again after the batch was
        planned nothing is left to read; one that was made again before is read from its beginning,
        as it was planned."""
        extents = self.extents()
        there = {topic: at for topic, at in start.at.items() if end.is_of(topic, extents[topic])}
        for topic in start.at.keys() - there.keys():
            if not self._options.begins_again:
                raise another_topic(topic)
        begin = self.begin(Place(there, start.identities), extents)
        known = [topic for topic in promised if start.is_of(topic, extents[topic])]
        return self.ranges(begin, end.at, promised=known, extents=extents)

    def with_rows(self, parts: Iterable[LogRange]) -> list[LogRange]:
        """The same rows, in ranges that have as many as they may: those of which a filter lets
        nothing through are left out. Reads the rows, so it is for those that take longer to work
        on than to read."""
        if not self._options.filter:
            return list(parts)
        found: list[LogRange] = []
        for _, adjacent in groupby(parts, key=lambda part: part.topic):
            first, *others = adjacent
            whole = replace(first, last=(others or [first])[-1].last)
            read = columns_of(self._log, self._options, whole)
            rows = [sequence for columns in read for sequence in columns.sequences]
            for low, high in even_parts(len(rows), self._options.max_records):
                found.append(replace(whole, first=rows[low], last=rows[high - 1]))
        return found

    def consume(self, before: Mapping[str, int], identities: Mapping[str, str] = _NOBODY) -> None:
        """These offsets are committed: work queues forget what lies below them; but for those that
        were begun elsewhere than at their beginning, since nobody has read what lies before."""
        if self._queues is None:
            self.extents()
        due = [
            topic
            for topic in self._queues or ()
            if before.get(topic, 1) > self._purged.get(topic, 1)
            and self._options.starting.is_beginning_of(topic)
        ]
        # One that was made again has what nobody has read under these sequences.
        extents = self.extents() if due else {}
        committed = Place(dict(before), identities)
        for topic in due:
            if not committed.is_of(topic, extents[topic]):
                if not self._options.begins_again:
                    raise another_topic(topic)
                continue
            check_not_beyond(topic, extents[topic], before[topic], "the checkpoint")
            self._log.purge(topic, before[topic])
            self._purged[topic] = before[topic]
