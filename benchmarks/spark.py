"""Topics through Spark, beside the blocking reader alone, nats-py and Spark's own sources."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.jetstream import PAYLOAD, REPEATS, Publishers, faster, running
from benchmarks.measure import Figures, Row, interleaved, table
from penstock import PubSub
from penstock.message import Draft
from penstock.spark import session
from penstock.spark.options import SourceOptions
from penstock.spark.schema import source_schema
from penstock.spark.source.reader import LogRange, read_range

ROWS = 400_000
PUBLISHED = 100_000
BATCHES = 12


async def fill(url: str, topic: str, count: int) -> None:
    async with PubSub(url) as pubsub:
        await pubsub.topic(topic).create()
        broker = await pubsub.broker()
        for at in range(0, count, 5000):
            drafts = [Draft(PAYLOAD, {}, None, f"{topic}-{n}") for n in range(at, at + 5000)]
            await broker.publish(topic, drafts)


class Fetching(DataSource):
    """What one would write first: nats-py's fetch, and a tuple a row."""

    @classmethod
    def name(cls) -> str:
        return "fetching"

    def schema(self) -> str:
        return "sequence bigint, subject string, data binary"

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        return _FetchReader(self.options["url"], int(self.options["rows"]))


class _FetchReader(DataSourceReader):
    def __init__(self, url: str, rows: int) -> None:
        self.url, self.rows = url, rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        half = self.rows // 2
        return iter(asyncio.run(_fetch(self.url, partition.value * half + 1, half)))


async def _fetch(url: str, first: int, count: int) -> list[tuple[Any, ...]]:
    client = await nats.connect(url)
    config = ConsumerConfig(
        ack_policy=AckPolicy.NONE,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=first,
    )
    sub = await client.jetstream().pull_subscribe("rows", config=config)
    rows: list[tuple[Any, ...]] = []
    while len(rows) < count:
        rows += [
            (message.metadata.sequence.stream, message.subject, message.data)
            for message in await sub.fetch(min(500, count - len(rows)), timeout=10)
        ]
    await client.close()
    return rows


class Ways:
    """Each way to move rows; all answer seconds a row."""

    def __init__(self, spark: SparkSession, port: int, folder: Path) -> None:
        self.spark = spark
        self.port = port
        self.url = f"nats://127.0.0.1:{port}"
        self.folder = folder
        self.runs = 0

    def checkpoint(self) -> str:
        self.runs += 1
        return str(self.folder / f"checkpoint-{self.runs}")

    async def alone(self) -> float:
        """The blocking reader and Arrow, without Spark, in one process."""
        return await asyncio.to_thread(self._alone)

    def _alone(self) -> float:
        options = SourceOptions.of({"url": self.url, "topic": "rows"})
        began = time.perf_counter()
        part = LogRange("rows", 1, ROWS)
        found = read_range(options, source_schema(headers=False), part)
        assert sum(batch.num_rows for batch in found) == ROWS
        return (time.perf_counter() - began) / ROWS

    async def table(self) -> float:
        frame = self.spark.read.format("penstock").options(url=self.url, topic="rows").load()
        return self._noop(frame, ROWS)

    async def fetching(self) -> float:
        rows = ROWS // 8
        frame = self.spark.read.format("fetching").options(url=self.url, rows=rows).load()
        return self._noop(frame, rows)

    def _noop(self, frame: DataFrame, rows: int) -> float:
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return (time.perf_counter() - began) / rows

    async def stream(self) -> float:
        """A stream in four batches; the time of its triggers, without starting up."""
        frame = (
            self.spark.readStream.format("penstock")
            .options(url=self.url, topic="rows", maxOffsetsPerTrigger=ROWS // 4)
            .load()
        )
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", self.checkpoint())
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(300)
        taken = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if rows_of(p)]
        assert sum(rows_of(p) for p in query.recentProgress) == ROWS
        query.stop()
        # The first batch starts the Python workers.
        return float(sum(taken[1:])) / 1000 / (ROWS * (len(taken) - 1) / len(taken))

    async def sink(self) -> float:
        self.runs += 1
        frame = self.spark.range(PUBLISHED, numPartitions=2).selectExpr(
            f"cast(rpad(cast(id as string), {len(PAYLOAD)}, '.') as binary) as data"
        )
        writer = frame.write.format("penstock").mode("append")
        began = time.perf_counter()
        writer.options(url=self.url, topic="sunk").save()
        return (time.perf_counter() - began) / PUBLISHED

    async def managed(self) -> float:
        ways = Publishers(self.port, PUBLISHED, window=512)
        return await ways.managed()

    async def few_rows(self) -> float:
        """Seconds of a trigger with few rows."""
        return self._triggers(
            self.spark.readStream.format("penstock")
            .options(url=self.url, topic="rows", maxOffsetsPerTrigger=10)
            .load()
        )

    async def rate_batches(self) -> float:
        return self._triggers(
            self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        )

    async def python_batches(self) -> float:
        """Spark's rate source and a Python stage that does nothing: what Python itself costs."""
        rates = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        return self._triggers(rates.mapInArrow(_same, "timestamp timestamp, value long"))

    def _triggers(self, frame: DataFrame) -> float:
        query = (
            frame.writeStream.format("noop").option("checkpointLocation", self.checkpoint()).start()
        )
        while query.lastProgress is None or query.lastProgress["batchId"] < BATCHES:
            time.sleep(0.02)
        query.stop()
        taken = sorted(p["durationMs"]["triggerExecution"] for p in query.recentProgress[2:])
        return float(taken[len(taken) // 2]) / 1000


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def rows_of(progress: Any) -> int:
    return int(progress["numInputRows"])


async def warmed(*ways: Callable[[], Awaitable[float]]) -> None:
    """Spark's first runs compile; they are nobody's speed."""
    for way in ways:
        await way()


async def main() -> bool:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        spark = session("bench", "local[2]", log_level="ERROR")
        spark.dataSource.register(Fetching)
        try:
            async with running(sync=False) as (port, _):
                return await _measure(Ways(spark, port, Path(name)))
        finally:
            spark.stop()


async def _measure(ways: Ways) -> bool:
    await fill(ways.url, "rows", ROWS)
    async with PubSub(ways.url) as pubsub:
        await pubsub.topic("sunk").create()
        await pubsub.topic("orders").create()
    await warmed(ways.table, ways.stream, ways.sink, ways.fetching)
    figures = await interleaved(
        REPEATS,
        alone=ways.alone,
        table=ways.table,
        stream=ways.stream,
        fetching=ways.fetching,
        sink=ways.sink,
        managed=ways.managed,
    )
    triggers = await interleaved(
        3, ours=ways.few_rows, rate=ways.rate_batches, python=ways.python_batches
    )
    stream = figures["stream"]
    rate = 1 / stream.median
    rows = [
        Row(
            "stream of 256 B messages to noop",
            f"{rate:,.0f}/s",
            promise="at least 100,000/s",
            kept=rate >= 100_000,
        ),
        faster("the same, against the reader alone", stream, figures["alone"], 0.5),
        faster("table, against the reader alone", figures["table"], figures["alone"]),
        faster("table, against nats-py and tuples", figures["table"], figures["fetching"], 5),
        faster("sink, against the managed publisher", figures["sink"], figures["managed"], 0.6),
        _overhead("a trigger of ten rows, against a Python stage", triggers, "python", 1.5),
        _overhead("the same, against Spark's rate source alone", triggers, "rate"),
    ]
    table("Spark on two cores, with the server on the same two", rows)
    return all(row.kept is not False for row in rows)


def _overhead(
    what: str, triggers: dict[str, Figures], other: str, most: float | None = None
) -> Row:
    ours, theirs = triggers["ours"].median, triggers[other].median
    return Row(
        what,
        f"{ours / theirs:5.2f} x  ({ours * 1000:.0f} ms)",
        promise=f"at most {most:g} x" if most is not None else "",
        kept=ours <= most * theirs if most is not None else None,
    )


if __name__ == "__main__":
    asyncio.run(main())
