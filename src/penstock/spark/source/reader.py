"""What executors do: read a range of a topic as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from penstock.broker import Extent, RangeLog
from penstock.columns import Columns
from penstock.spark.loss import report_loss
from penstock.spark.options import SourceOptions
from penstock.spark.ranges import open_patiently
from penstock.spark.schema import arrow_schema, to_batch
from penstock.spark.source.offsets import check_read_whole


@dataclass
class LogRange(InputPartition):
    """`first` to `last` of a topic, both included; of the very topic that was planned with, where
    `identity` says which that is."""

    topic: str
    first: int
    last: int
    identity: str = ""


def read_range(
    options: SourceOptions, schema: StructType, part: LogRange
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in order, over a connection of its own."""
    wanted = arrow_schema(schema)
    for columns in read_columns(options, part):
        yield to_batch(wanted, part.topic, columns)


def read_columns(options: SourceOptions, part: LogRange) -> Iterator[Columns]:
    """The messages of a range, in order, over a connection of its own."""
    if part.last < part.first:
        return
    log = open_patiently(options.url, options.server_timeout, proven=True)
    try:
        yield from columns_of(log, options, part)
    finally:
        log.close()


def columns_of(log: RangeLog, options: SourceOptions, part: LogRange) -> Iterator[Columns]:
    """Missing messages are an error or logged, as the options say. The topic may be made again
    meanwhile and have others under these sequences: they are an error."""
    seen = 0
    headers = options.include_headers
    for columns in log.read(part.topic, part.first, part.last, options.filter, headers=headers):
        seen += len(columns)
        yield columns
    is_whole = seen == part.last - part.first + 1
    if is_whole and not part.identity:
        return
    extent = log.extent(part.topic)
    check_read_whole(part.topic, extent, part.identity)
    if not is_whole:
        _check_loss(extent, options, part, seen)


def _check_loss(extent: Extent, options: SourceOptions, part: LogRange, seen: int) -> None:
    """Some sequences were not there, or the filter took them. Those below the topic's first were
    lost to age, size or a purge; those above it were deleted one by one or replaced, which is how
    such topics work."""
    if extent.first <= part.first or extent.is_compacted:
        return
    lost = min(extent.first, part.last + 1) - part.first
    report_loss(
        options,
        f"Topic {part.topic!r} was to be read from {part.first} to {part.last} and now begins at "
        f"{extent.first}: up to {lost} messages are gone ({seen} were read)",
    )
