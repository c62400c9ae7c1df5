"""What executors do: read a range of a topic as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from penstock.brokers.nats.sync.passing_consumer import BulkReader
from penstock.brokers.nats.sync.ranges import Columns, Stream
from penstock.errors import DataLossError, PermissionDeniedError
from penstock.rules.filters import parse_filter
from penstock.spark.source.door import Door
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.schema import arrow_schema, to_batch

_log = logging.getLogger("penstock")


@dataclass
class LogRange(InputPartition):
    """`first` to `last` of a topic, both included; only these `subjects`, when there are any.

    `bulk`: a consumer may be made to read it, and is worth it.
    """

    topic: str
    first: int
    last: int
    subjects: tuple[str, ...] = ()
    bulk: bool = False


def read_range(
    options: SourceOptions, schema: StructType, part: LogRange
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in order. Missing ones are an error or logged, as the options say."""
    arrow = arrow_schema(schema)
    door = Door(options.url, options.server_timeout, first=True)
    matches = parse_filter(options.filter).matches if options.filter else None
    try:
        stream = Stream(part.topic, door.connection)
        seen = 0
        for columns in _columns(stream, part):
            seen += len(columns)
            if matches is not None:
                rows = range(len(columns))
                columns = columns.keep([row for row in rows if matches(columns.attributes(row))])
            if len(columns):
                yield to_batch(arrow, part.topic, columns)
        if seen < part.last - part.first + 1:
            _check_loss(stream, part, options, seen)
    finally:
        door.close()


def _columns(stream: Stream, part: LogRange) -> Iterator[Columns]:
    at = part.first
    if part.bulk:
        try:
            for columns in BulkReader(stream, part.subjects).read(at, part.last):
                at = columns.sequences[-1] + 1
                yield columns
        except PermissionDeniedError:
            # This user may read and make no consumers.
            part = replace(part, first=at)
        else:
            return
    yield from _direct(stream, part)


def _direct(stream: Stream, part: LogRange) -> Iterator[Columns]:
    if len(part.subjects) <= 1:
        subject = part.subjects[0] if part.subjects else ""
        return stream.read(part.first, part.last, subject)
    return merged([stream.read(part.first, part.last, subject) for subject in part.subjects])


def merged(sources: list[Iterator[Columns]]) -> Iterator[Columns]:
    """Several subjects of one range in the order of their sequences."""
    held: list[tuple[Columns, Iterator[Columns]]] = []
    for source in sources:
        first = next(source, None)
        if first is not None:
            held.append((first, source))
    while len(held) > 1:
        bound = min(columns.sequences[-1] for columns, _ in held)
        ready, later = Columns(), []
        for columns, source in held:
            cut = sum(1 for sequence in columns.sequences if sequence <= bound)
            ready.extend(columns.keep(list(range(cut))))
            rest: Columns | None = columns.keep(list(range(cut, len(columns))))
            if not rest:
                rest = next(source, None)
            if rest is not None:
                later.append((rest, source))
        held = later
        yield ready.keep(sorted(range(len(ready)), key=ready.sequences.__getitem__))
    for columns, source in held:
        yield columns
        yield from source


def _check_loss(stream: Stream, part: LogRange, options: SourceOptions, seen: int) -> None:
    """Some sequences were not there. Those below the stream's first were lost to age, size or a
    purge; those above it were deleted one by one or replaced, which is how such topics work."""
    info = stream.info()
    first = info["state"]["first_seq"]
    if first <= part.first or info["config"].get("max_msgs_per_subject", -1) > 0:
        return
    lost = min(first, part.last + 1) - part.first
    report_loss(
        options,
        f"Topic {part.topic!r} was to be read from {part.first} to {part.last} and now begins at "
        f"{first}: up to {lost} messages are gone ({seen} were read)",
    )


def report_loss(options: SourceOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{what}. Keep messages longer than the query may be away, or set "
            "failOnDataLoss=false to go on without them"
        )
    _log.warning("%s; going on without them", what)
