"""A topic's dead letters as a table: what was given up, why, and what was done about it since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.clock import to_ns
from penstock.dead_letters.letter import DeadLetter, read_letter
from penstock.dead_letters.marks import MARK
from penstock.message import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = (
    "sequence long, time timestamp, reason string, error string, attempt int, "
    "origin_topic string, origin_subscription string, origin_message_id string, "
    "published timestamp, ordering_key string, attributes map<string,string>, data binary, "
    "cut long"
)
_INPUT = (
    *("topic", "sequence", "message_id", "ordering_key", "subject", "attributes", "data"),
    "publish_time",
)
_MOMENT = pa.timestamp("us", tz="UTC")


def read_dead_letters(spark: SparkSession, url: str, topic: str) -> DataFrame:
    """A row a letter, whoever wrote it; `settled` says 'replayed' or 'discarded' of those that
    something was done about."""
    from pyspark.sql import functions as f

    records = spark.read.format("penstock").options(url=url, topic=topic).load()
    is_mark = f.map_contains_key("attributes", MARK)
    letters = records.where(~is_mark).select(*_INPUT).mapInArrow(_letters, _COLUMNS)
    named = f.from_json(f.col("data").cast("string"), "array<bigint>")
    marks = (
        records.where(is_mark)
        .select(
            f.explode(named).alias("sequence"),
            f.col("attributes")[MARK].alias("deed"),
            f.col("sequence").alias("marked"),
        )
        .groupBy("sequence")
        # The last one counts.
        .agg(f.max_by("deed", "marked").alias("settled"))
    )
    return letters.join(marks, "sequence", "left")


def _letters(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield _rows([_letter(**row) for row in batch.to_pylist()])


def _letter(
    *,
    topic: str,
    sequence: int,
    message_id: str,
    ordering_key: str | None,
    subject: str,
    attributes: list[tuple[str, str]],
    data: bytes,
    publish_time: datetime,
) -> DeadLetter:
    stored = to_ns(publish_time)
    return read_letter(
        topic,
        Record(sequence, message_id, data, dict(attributes), ordering_key, subject, stored),
    )


def _rows(letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    def column(kind: pa.DataType, read: Callable[[DeadLetter], Any]) -> pa.Array:
        return pa.array([read(one) for one in letters], kind)

    text = pa.string()
    return pa.RecordBatch.from_pydict(
        {
            "sequence": column(pa.int64(), lambda one: one.sequence),
            "time": column(_MOMENT, lambda one: one.time),
            "reason": column(text, lambda one: one.reason),
            "error": column(text, lambda one: one.error),
            "attempt": column(pa.int32(), lambda one: one.attempt),
            "origin_topic": column(text, lambda one: one.origin.topic),
            "origin_subscription": column(text, lambda one: one.origin.subscription),
            "origin_message_id": column(text, lambda one: one.origin.message_id),
            "published": column(_MOMENT, lambda one: one.origin.published),
            "ordering_key": column(text, lambda one: one.ordering_key),
            "attributes": column(pa.map_(text, text), lambda one: list(one.attributes.items())),
            "data": column(pa.binary(), lambda one: one.data),
            "cut": column(pa.int64(), lambda one: one.cut),
        }
    )
