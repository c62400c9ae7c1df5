"""`format("penstock")`: the way into everything else here. Light to import: every Spark session
does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from penstock.spark.options import SourceOptions


class PenstockDataSource(DataSource):
    """Topics as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """Asked for by `load()`: the place to say what is wrong, before anything starts."""
        from penstock.spark.schema import source_schema

        options = self._source_options()
        if options.mode == "queue":
            from penstock.spark.queue.stream import check_queue

            check_queue(options)
        else:
            from penstock.spark.source.stream import check_log

            check_log(options)
        return source_schema(headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.connect import scheme_of
        from penstock.errors import InvalidArgumentError
        from penstock.spark.schema import check_schema
        from penstock.spark.source.batch import LogReader

        options = self._source_options()
        if options.mode != "log":
            raise InvalidArgumentError(
                f"What is behind {scheme_of(options.url)}:// keeps no log to read as a "
                "table; use readStream"
            )
        check_schema(schema, headers=options.include_headers)
        return LogReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from penstock.spark.queue.stream import QueueStreamReader
        from penstock.spark.schema import check_schema
        from penstock.spark.source.stream import LogStreamReader

        options = self._source_options()
        check_schema(schema, headers=options.include_headers)
        if options.mode == "queue":
            return QueueStreamReader(options, schema)
        return LogStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.errors import InvalidArgumentError
        from penstock.spark.options import SinkOptions
        from penstock.spark.sink.writer import TopicWriter

        if overwrite:
            raise InvalidArgumentError("A topic is only ever added to: use mode('append')")
        return TopicWriter(SinkOptions.of(self.options), schema)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamWriter:
        from penstock.spark.options import SinkOptions
        from penstock.spark.sink.writer import TopicStreamWriter

        return TopicStreamWriter(SinkOptions.of(self.options), schema)

    def _source_options(self) -> SourceOptions:
        from penstock.spark.options import SourceOptions

        return SourceOptions.of(self.options)
