"""Reading topics as a stream: offsets are sequences, and every batch can be read again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.broker import Extent
from penstock.connect import hold_server
from penstock.errors import InvalidArgumentError
from penstock.own_server import Hold
from penstock.spark.hung_up import end_if_spark_hung_up
from penstock.spark.options import SourceOptions
from penstock.spark.ranges import open_patiently
from penstock.spark.source.offsets import (
    LATEST,
    Offsets,
    Place,
    advance,
    check_not_beyond,
    identities_of,
    known,
    place_of,
)
from penstock.spark.source.planner import Planner
from penstock.spark.source.reader import LogRange, read_range

# Spark asks some ninety times a second whether there is more. While there is not, each answer
# takes this long, doubling up to the second.
_SHORTEST_IDLE, _LONGEST_IDLE = 0.01, 0.1
# And the longer nothing has come, the less is the broker asked: what comes after a while of quiet
# waits up to a twentieth of it, but no longer than a second.
_QUIET_SHARE, _LONGEST_UNSEEN = 1 / 20, 1.0
# Seconds until a pattern is looked up again.
_FINDING = 10.0


def check_log(options: SourceOptions) -> None:
    """Raise whatever keeps these topics from being read."""
    planner = Planner(options, open_patiently(options.url, options.server_timeout))
    try:
        planner.check()
    finally:
        planner.close()


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Planned and asked for offsets in one process, read in others: nothing is open until used."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._open: Planner | None = None
        self._hold: Hold | None = None
        self._initial: Offsets | None = None
        self._target: dict[str, Extent] | None = None
        self._latest: Offsets | None = None
        self._idle = 0.0
        self._seen: dict[str, Extent] = {}
        self._looked_at = 0.0
        self._quiet_since: float | None = None
        self._waits_since: float | None = None
        if options.ending != LATEST:
            raise InvalidArgumentError(
                "A stream has no end: leave out the options 'ending…', or read a table"
            )
        self._begins_at_latest = False
        self._find_more_at = 0.0

    @property
    def _planner(self) -> Planner:
        if self._open is None:
            options = self._options
            # Spark kills this process when the query ends.
            self._hold = hold_server(options.url)
            self._open = Planner(options, open_patiently(options.url, options.server_timeout))
        return self._open

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        planner = self._planner
        identities = identities_of(planner.extents())
        self._initial = planner.resolve(self._options.starting)
        planner.check_reached(self._initial)
        self._begins_at_latest = self._options.starting.is_latest_for(planner.topics)
        return Place(self._initial, identities).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows, size = self._options.max_offsets, self._options.max_bytes
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadMaxBytes(size) if size is not None else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Called only once the batch that ended at `start` is committed, and again and again
        while there is nothing new."""
        told = place_of(start)
        place = Place(self._known(told.at), told.identities)
        if told.at != self._initial:
            self._planner.consume(*told)
        elif self._begins_at_latest:
            # Spark writes down where batches end, and asks again where the first began. So the
            # first is empty, and its end says where the rest begins.
            self._begins_at_latest = False
            return place.to_json()
        target = self._target
        extents = target if target is not None and place.at.keys() <= target.keys() else None
        if extents is None:
            extents = self._news(place)
        begin = self._planner.begin(place, extents)
        for topic, at in begin.items():
            check_not_beyond(topic, extents[topic], at, "the checkpoint")
        return Place(self._end(begin, extents, limit), identities_of(extents)).to_json()

    def _end(self, begin: Offsets, extents: Mapping[str, Extent], limit: ReadLimit) -> Offsets:
        if self._waits_for_more(begin, extents):
            return begin
        if isinstance(limit, ReadAllAvailable):
            return advance(begin, extents)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return advance(begin, extents, rows, self._options.max_bytes)

    def _known(self, start: Mapping[str, int], told: Iterable[str] = ()) -> Offsets:
        """Where each topic begins; now and then with topics that have come since."""
        planner, now = self._planner, time.monotonic()
        told = {*start, *told}
        is_time = self._target is None and now >= self._find_more_at
        if is_time or not told <= set(planner.topics):
            self._find_more_at = now + _FINDING
            planner.find_more(told)
        return known(start, planner.topics)

    def _waits_for_more(self, begin: Offsets, extents: Mapping[str, Extent]) -> bool:
        """There is less than a batch should have, and it has not been waited for long enough. What
        is to be worked through now is not waited for."""
        least = self._options.min_offsets
        there = sum(max(0, extents[topic].end - at) for topic, at in begin.items())
        if least is None or self._target is not None or not 0 < there < least:
            self._waits_since = None
            return False
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if now - self._waits_since >= self._options.max_delay:
            self._waits_since = None
            return False
        time.sleep(_LONGEST_IDLE)
        return True

    def _news(self, place: Place) -> dict[str, Extent]:
        extents = self._seen if self._quiet_since is not None else {}
        if not place.at.keys() <= extents.keys():
            extents = self._look()
        if not self._has_more(place, extents):
            extents = self._rest(extents)
        if self._has_more(place, extents):
            self._idle, self._quiet_since = 0.0, None
        return extents

    def _has_more(self, place: Place, extents: Mapping[str, Extent]) -> bool:
        begin = self._planner.begin(place, extents)
        return any(extents[topic].end > at for topic, at in begin.items())

    def _rest(self, extents: dict[str, Extent]) -> dict[str, Extent]:
        """Wait a little, and look again unless somebody just has."""
        if self._quiet_since is None:
            self._quiet_since = time.monotonic()
        self._idle = min(max(self._idle * 2, _SHORTEST_IDLE), _LONGEST_IDLE)
        time.sleep(self._idle)
        now = time.monotonic()
        unseen = min((now - self._quiet_since) * _QUIET_SHARE, _LONGEST_UNSEEN)
        return self._look() if now - self._looked_at >= unseen else extents

    def _look(self) -> dict[str, Extent]:
        self._seen = extents = self._planner.extents()
        self._looked_at = time.monotonic()
        self._latest = {topic: extent.end for topic, extent in sorted(extents.items())}
        return extents

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._look()

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[LogRange]:
        told, until = place_of(start), place_of(end)
        known = self._known(told.at, until.at)
        # A topic that was added later has no end in a batch that was planned before.
        begin = Place({topic: known[topic] for topic in until.at}, told.identities)
        return self._planner.between(begin, until, promised=told.at)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogRange)  # noqa: S101
        return read_range(self._options, self._schema, partition)

    def stop(self) -> None:
        for part in (self._open, self._hold):
            if part is not None:
                part.close()
        self._open = self._hold = None
        end_if_spark_hung_up()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None, "_hold": None}
