"""What the projection is to read, as a source of Spark: sequences, and no messages. The driver
reads those itself; to have them read elsewhere and brought to it through the JVM took several times
as long as reading them does."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.spark.data_source import PenstockDataSource
from penstock.spark.schema import arrow_schema, source_schema
from penstock.spark.source.reader import LogRange
from penstock.spark.source.stream import LogStreamReader

# Which topic of its name it is, is said once a partition.
_SCHEMA = StructType(
    [
        StructField("sequence", LongType(), nullable=False),
        StructField("identity", StringType(), nullable=True),
    ]
)


class EventSource(PenstockDataSource):
    """The sequences that `format("penstock")` would read of one topic, with the same options."""

    @classmethod
    def name(cls) -> str:
        return "penstock-sequences"

    def schema(self) -> StructType:
        super().schema()
        return _SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return _SequenceReader(self._source_options(), source_schema(headers=False))


class _SequenceReader(LogStreamReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogRange)  # noqa: S101
        sequences = pa.array(range(partition.first, partition.last + 1), pa.int64())
        others = pa.nulls(len(sequences) - 1, pa.string())
        identity = pa.concat_arrays([pa.array([partition.identity], pa.string()), others])
        yield pa.RecordBatch.from_arrays([sequences, identity], schema=arrow_schema(_SCHEMA))
