"""A stage as a source of Spark: a task deals with messages where it reads them, and hands Spark
their ids. To read them in one Python process and work on them in another would take two processes
a task, and every message through the JVM between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from penstock.collector import keep_what_is_loaded
from penstock.columns import Columns
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.jobs.columns import attributes_of
from penstock.spark.jobs.workplace import Workplace
from penstock.spark.options import SourceOptions
from penstock.spark.queue.stream import QueueStreamReader, Segments, read_segments
from penstock.spark.schema import arrow_schema, source_schema
from penstock.spark.source.reader import LogRange, read_columns
from penstock.spark.source.stream import LogStreamReader

if TYPE_CHECKING:
    from penstock.jobs.incoming import Incoming

_SCHEMA = StructType([StructField("message_id", StringType(), nullable=False)])


@dataclass(frozen=True)
class StageTask:
    """A stage, and where it works. What follows from a message is committed with it."""

    workplace: Workplace
    stage: str

    def deal_with(self, messages: Sequence[Incoming]) -> Iterator[pa.RecordBatch]:
        """All of them together; then their ids, for Spark to count."""
        if messages:
            self.workplace.runner().run(self.stage, messages)
            # Spark has it look through everything after each task, which took as long as working
            # on hundreds of jobs does.
            keep_what_is_loaded()
            ids = pa.array([message.message_id for message in messages], pa.string())
            yield pa.RecordBatch.from_arrays([ids], schema=arrow_schema(_SCHEMA))


def stage_source(task: StageTask) -> type[StageSource]:
    """The source of one query. Spark takes a class and makes what it needs of it in other
    processes, so the class brings the task along."""
    return type("StageSource", (StageSource,), {"task": task})


class StageSource(PenstockDataSource):
    """The messages that `format("penstock")` reads with the same options, dealt with."""

    task: ClassVar[StageTask]

    @classmethod
    def name(cls) -> str:
        return "penstock-stage"

    def schema(self) -> StructType:
        super().schema()
        return _SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        options = self._source_options()
        reader = _QueueStageReader if options.mode == "queue" else _LogStageReader
        return reader(options, self.task)


class _LogStageReader(LogStreamReader):
    def __init__(self, options: SourceOptions, task: StageTask) -> None:
        super().__init__(options, source_schema(headers=False))
        self._task = task

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[LogRange]:
        """A topic has the messages of all stages, and a task with none of its own costs as much as
        one with some."""
        return self._planner.with_rows(super().partitions(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogRange)  # noqa: S101
        messages: list[Incoming] = []
        for columns in read_columns(self._options, partition):
            messages += _of_columns(partition.topic, columns)
        return self._task.deal_with(messages)


class _QueueStageReader(QueueStreamReader):
    def __init__(self, options: SourceOptions, task: StageTask) -> None:
        super().__init__(options, source_schema(headers=False))
        self._task = task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Segments)  # noqa: S101
        for batch in read_segments(self._options, partition):
            yield from self._task.deal_with(_of_batch(batch))


# What is of jobs is imported where there are some: processes that plan import this module, too.


def _of_columns(topic: str, columns: Columns) -> Iterator[Incoming]:
    from penstock.jobs.incoming import Incoming

    for row, (name, data) in enumerate(zip(columns.ids, columns.data, strict=True)):
        # Not everybody who publishes sends UTF-8.
        message_id = name.decode(errors="replace")
        yield Incoming(topic, message_id, columns.attributes.get(row, {}), data)


def _of_batch(batch: pa.RecordBatch) -> list[Incoming]:
    from penstock.jobs.incoming import Incoming

    topics, ids, data = (batch.column(name).to_pylist() for name in ("topic", "message_id", "data"))
    return list(map(Incoming, topics, ids, attributes_of(batch.column("attributes")), data))
