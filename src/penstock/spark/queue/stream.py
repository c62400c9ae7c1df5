"""Reading a subscription as a stream: offsets are segments of a spool."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.connect import connect, hold_server
from penstock.errors import DataLossError, FailedPreconditionError
from penstock.own_server import Hold
from penstock.spark.hung_up import end_if_spark_hung_up
from penstock.spark.loss import report_loss
from penstock.spark.options import SourceOptions
from penstock.spark.queue.spool import Spool, segment_path
from penstock.spark.queue.spooler import Spooler
from penstock.spark.schema import arrow_schema
from penstock.spark.source.offsets import place_of

_IDLE = 0.1


@dataclass
class Segments(InputPartition):
    """Segments `first` to `last`, both included."""

    first: int
    last: int


def check_queue(options: SourceOptions) -> None:
    """Raise whatever keeps this subscription from being read."""
    asyncio.run(_check_queue(options))


async def _check_queue(options: SourceOptions) -> None:
    broker = await connect(options.url)
    try:
        await broker.admin.describe_subscription(options.subscription)
    finally:
        await broker.aclose()


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are the number of the next segment. Nothing is open until used."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._spool: Spool | None = None
        self._spooler: Spooler | None = None
        self._hold: Hold | None = None
        self._target: int | None = None

    def _opened(self) -> Spool:
        if self._spool is None:
            # Spark kills this process when the query ends.
            self._hold = hold_server(self._options.url)
            self._spool = Spool(Path(self._options.spool), arrow_schema(self._schema))
        return self._spool

    def _spooling(self) -> Spooler:
        spool = self._opened()
        if self._spooler is None:
            self._spooler = Spooler(spool, self._options)
        self._spooler.check()
        return self._spooler

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"segment": self._opened().first}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets
        return ReadMaxRows(most) if most is not None else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Called only once what lies before `start` is committed: it is deleted here."""
        spool, begin = self._opened(), _segment(start)
        self._check_start(spool, begin)
        spool.forget(begin)
        spool.begin_at(begin)
        self._spooling()
        if self._target is None:
            spool.wait(begin, _IDLE)
        end = spool.next if self._target is None else max(self._target, begin)
        if isinstance(limit, ReadMaxRows):
            end = _limited(spool.rows, begin, end, limit.max_rows)
        return {"segment": end}

    def _check_start(self, spool: Spool, begin: int) -> None:
        if begin < spool.first and begin < spool.next:
            report_loss(
                self._options,
                f"The checkpoint begins at segment {begin} and the spool at {spool.first}: it went "
                "back in time, and what lies between was deleted as done",
            )
        if begin > 1 and not spool.has_history:
            report_loss(
                self._options,
                f"The checkpoint has read segments up to {begin - 1} and the spool in "
                f"{self._options.spool} is new: what it held and no batch had read is gone",
            )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._spooling().drain()
        self._target = self._opened().next

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        return {"segment": self._spool.next} if self._spool is not None else None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        spool = self._opened()
        first, last = _segment(start), _segment(end) - 1
        missing = [n for n in range(first, last + 1) if n not in spool.rows]
        if missing:
            report_loss(
                self._options,
                f"Segments {missing[0]} to {missing[-1]} are not in the spool "
                f"{self._options.spool}",
            )
        return _grouped([n for n in range(first, last + 1) if n in spool.rows], spool.rows,
                        self._options.max_records)  # fmt: skip

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Segments)  # noqa: S101
        return read_segments(self._options, partition)

    def stop(self) -> None:
        for part in (self._spooler, self._spool, self._hold):
            if part is not None:
                part.close()
        self._spooler = self._spool = self._hold = None
        end_if_spark_hung_up()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spool": None, "_spooler": None, "_hold": None}


def _segment(offset: Mapping[str, Any]) -> int:
    if "segment" not in offset:
        topics = ", ".join(place_of(offset).at)
        raise FailedPreconditionError(
            f"The checkpoint is that of a query that read {topics} as a log, and this one reads a "
            "queue; begin with a new checkpoint"
        )
    return int(offset["segment"])


def read_segments(options: SourceOptions, part: Segments) -> Iterator[pa.RecordBatch]:
    folder = Path(options.spool)
    for number in range(part.first, part.last + 1):
        path = segment_path(folder, number)
        if not path.exists():
            raise DataLossError(
                f"There is no segment {path.name} in {folder} here: 'spoolLocation' must be a "
                "folder that the driver and all executors see"
            )
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            yield from stream


def _limited(rows: dict[int, int], begin: int, end: int, most: int) -> int:
    """As many segments as hold no more than `most` rows, but one at least."""
    at, count = begin, 0
    while at < end:
        count += rows.get(at, 0)
        if at > begin and count > most:
            break
        at += 1
    return at


def _grouped(numbers: list[int], rows: dict[int, int], most: int) -> list[Segments]:
    """Small segments that follow each other are read by one task."""
    parts: list[Segments] = []
    count = 0
    for number in numbers:
        if parts and parts[-1].last == number - 1 and count + rows[number] <= most:
            parts[-1].last = number
            count += rows[number]
        else:
            parts.append(Segments(number, number))
            count = rows[number]
    return parts
