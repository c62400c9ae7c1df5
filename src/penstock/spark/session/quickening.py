"""`quicken`: lets sessions on this machine start in less time from now on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.spark.session.class_file import class_file, listing_option, write_classes
from penstock.spark.session.java import java_home
from penstock.spark.session.starting import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Seconds for a JVM to end that has nothing left to do.
_ENDING = 60.0


def quicken() -> Path:
    """Run Spark once, remember the classes it loads, and write them into the file that `session`
    looks for. It is for the Java and the Spark that are here; others leave it alone."""
    file = class_file()
    with tempfile.TemporaryDirectory(prefix="classes-", dir=file.parent) as folder:
        listed = Path(folder, "listed")
        options = {"spark.driver.extraJavaOptions": listing_option(listed)}
        spark = session("penstock quicken", "local[2]", config=options, log_level="ERROR")
        try:
            path = spark._jvm.System.getProperty("java.class.path")  # type: ignore[union-attr]
            _stream(spark, folder)
        finally:
            _end(spark)
        write_classes(java_home(), path, listed, file)
    return file


def _stream(spark: SparkSession, folder: str) -> None:
    """What a pipeline does: queries over a source in Python, whose rows go nowhere or here."""
    spark.dataSource.register(_Numbers)
    numbers = spark.readStream.format(_Numbers.name()).load().writeStream
    for name, writer in {
        "nowhere": numbers.format("noop"),
        "here": numbers.foreachBatch(lambda batch, _: batch.toArrow() and None),
    }.items():
        query = writer.option("checkpointLocation", f"{folder}/{name}").start()
        query.processAllAvailable()
        query.stop()


def _end(spark: SparkSession) -> None:
    """With its JVM, which has then said all."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_ENDING)


class _Numbers(DataSource):
    """One number, once."""

    @classmethod
    def name(cls) -> str:
        return "penstock-numbers"

    def schema(self) -> str:
        return "number long"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return _Reader()


class _Reader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"number": 0}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:  # noqa: ARG002, N802
        return {"number": 1}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:  # noqa: ARG002
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        yield pa.RecordBatch.from_pydict({"number": pa.array([1], pa.int64())})
