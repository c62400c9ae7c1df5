"""What Spark tests share: topics as frames, and queries run to their end."""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

# How long a query may take on a machine that has other things to do. Nothing waits that long.
PATIENCE = 150.0


def table(spark: SparkSession, url: str, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("penstock").option("url", url).option("topic", topic)
    return reader.options(**options).load()


def stream(spark: SparkSession, url: str, topic: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("penstock").option("url", url).option("topic", topic)
    return reader.options(**options).load()


def numbers(frame: DataFrame) -> list[int]:
    """What `fill` published, in the order of the rows."""
    return [int(row.data.rstrip(b"\0")) for row in frame.select("data").collect()]


def run_available(frame: DataFrame, folder: Path, name: str = "out") -> Path:
    """Write what is there now to Parquet, from where the last run ended; returns the folder."""
    out = folder / name
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / f"{name}-checkpoint"))
        .option("path", str(out))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(PATIENCE), "the query did not end"
    finally:
        query.stop()
    return out
