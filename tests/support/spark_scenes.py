"""What Spark tests share: topics with messages in them, and queries run to their end."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock import PubSub
from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.sync.connection import BlockingConnection
from penstock.message import Draft, PublishFault


def make(url: str, *topics: str, **options: Any) -> None:
    async def create() -> None:
        async with PubSub(url) as pubsub:
            for topic in topics:
                await pubsub.topic(topic).create(**options)

    asyncio.run(create())


def fill(
    url: str,
    topic: str,
    numbers: Iterable[int],
    *,
    attributes: Mapping[str, str] | None = None,
    ordering_key: str | None = None,
    size: int = 0,
) -> None:
    """Publish each number as data, under an id made of it."""
    drafts = [
        Draft(b"%d" % n + bytes(size), dict(attributes or {}), ordering_key, f"{topic}/{n}")
        for n in numbers
    ]

    async def publish() -> None:
        async with PubSub(url) as pubsub:
            broker = await pubsub.broker()
            for at in range(0, len(drafts), 5000):
                for answer in await broker.publish(topic, drafts[at : at + 5000]):
                    if isinstance(answer, PublishFault):
                        raise answer.error

    asyncio.run(publish())


def stored(url: str, topic: str) -> list[str]:
    """The data of everything in a topic, as text, in order."""

    async def read() -> list[str]:
        async with PubSub(url) as pubsub:
            log = (await pubsub.broker()).log
            assert log is not None
            last = (await log.extent(topic)).last
            return [r.data.decode() async for batch in log.read(topic, 1, last) for r in batch]

    return asyncio.run(read())


def api(url: str, subject: str, body: Any = None) -> dict[str, Any]:
    """An operator's request to JetStream."""
    with BlockingConnection(NatsOptions.of(url)) as connection:
        return connection.request(subject, body)


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
        assert query.awaitTermination(50), "the query did not end"
    finally:
        query.stop()
    return out
