"""Reading topics as a table: a range of sequences or of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from penstock.clock import to_ns
from penstock.spark.options import SourceOptions
from penstock.spark.ranges import open_patiently
from penstock.spark.source.offsets import Position
from penstock.spark.source.planner import Planner
from penstock.spark.source.reader import LogRange, read_range


class LogReader(DataSourceReader):
    """One table scan."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._bounds = Bounds()
        if options.push_filters:
            # A class that defines `pushFilters` is refused where pushing is switched off; what an
            # object has is called where it is switched on and left alone elsewhere.
            self.pushFilters = _Push(self._bounds)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        log = open_patiently(self._options.url, self._options.server_timeout)
        planner = Planner(self._options, log)
        try:
            start = planner.resolve(self._options.starting)
            end = planner.resolve(self._options.ending)
            bounds = self._bounds
            if bounds.since_us is not None:
                since = planner.resolve(Position(moment_us=bounds.since_us))
                start = {topic: max(at, since[topic]) for topic, at in start.items()}
            extents = planner.extents()
            for topic in start:
                low, high = bounds.sequences(topic)
                start[topic] = max(start[topic], low)
                end[topic] = min(end[topic], extents[topic].end, high)
                start[topic] = min(start[topic], end[topic])
            # What a table has lost before it was looked at is not there, as in any table.
            promised = [topic for topic in start if self._options.starting.of(topic) > 0]
            found = planner.ranges(start, end, promised=promised)
        finally:
            planner.close()
        # Spark takes no partitions for one that nobody planned.
        return [*found] or [LogRange("", 1, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogRange)  # noqa: S101
        return read_range(self._options, self._schema, partition)


class Bounds:
    """What a query's filters say about topics, sequences and times."""

    def __init__(self) -> None:
        self.low = 1
        self.high: int | None = None
        self.topics: set[str] | None = None
        self.since_us: int | None = None

    def sequences(self, topic: str) -> tuple[int, int]:
        """The first that is wanted, and the first that is not."""
        if self.topics is not None and topic not in self.topics:
            return 1, 1
        return self.low, self.high if self.high is not None else 2**63 - 1

    def take(self, filter: Filter) -> bool:
        """True when nothing is left of a filter for Spark to do."""
        match filter:
            case EqualTo(("topic",), str() as name):
                self._only({name})
            case In(("topic",), names) if all(isinstance(name, str) for name in names):
                self._only(set(names))
            case EqualTo(("sequence",), int() as value):
                self._between(value, value + 1)
            case GreaterThan(("sequence",), int() as value):
                self._between(value + 1, None)
            case GreaterThanOrEqual(("sequence",), int() as value):
                self._between(value, None)
            case LessThan(("sequence",), int() as value):
                self._between(1, value)
            case LessThanOrEqual(("sequence",), int() as value):
                self._between(1, value + 1)
            case GreaterThan(("publish_time",), datetime() as moment) | GreaterThanOrEqual(
                ("publish_time",), datetime() as moment
            ):
                # It says where to begin. The clock of a server may step back, so Spark looks too.
                self.since_us = max(self.since_us or 0, to_ns(moment.astimezone()) // 1000)
                return False
            case _:
                return False
        return True

    def _only(self, names: set[str]) -> None:
        self.topics = names if self.topics is None else self.topics & names

    def _between(self, low: int, high: int | None) -> None:
        self.low = max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)


class _Push:
    __func__ = DataSourceReader.pushFilters

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return [one for one in filters if not self._bounds.take(one)]

    def __reduce__(self) -> tuple[Any, ...]:
        return _Push, (self._bounds,)
