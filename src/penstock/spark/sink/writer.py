"""Rows to messages: what the sink does in each task."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from penstock.errors import InvalidArgumentError
from penstock.message import MAX_DATA_BYTES, Draft
from penstock.spark.options import SinkOptions
from penstock.spark.sink.fence import Fence, open_fence
from penstock.spark.sink.sender import Sender, connected

_TEXT = (StringType,)
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "data": (BinaryType, StringType),
    "attributes": (MapType,),
    "ordering_key": _TEXT,
    "message_id": _TEXT,
    "subject": _TEXT,
    "topic": _TEXT,
}
# The source's own, which say nothing about a message to be.
_IGNORED = ("sequence", "publish_time", "headers")
_CHUNKS = 8


@dataclass
class Written(WriterCommitMessage):
    """What one task did. `skipped`: rows that an earlier attempt had stored."""

    rows: int
    duplicates: int
    skipped: int


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise unless every column is one that a message has, and those that it needs are there."""
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if kinds is None and field.name not in _IGNORED:
            raise InvalidArgumentError(
                f"Column {field.name!r} is no part of a message; select only "
                f"{', '.join(_COLUMNS)} (and {', '.join(_IGNORED)}, which are ignored)"
            )
        if kinds is not None and not isinstance(field.dataType, kinds):
            raise InvalidArgumentError(
                f"Column {field.name!r} is {field.dataType.simpleString()} and must be "
                + " or ".join(kind.typeName() for kind in kinds)
            )
    attributes = schema["attributes"].dataType if "attributes" in schema.names else None
    if attributes is not None and attributes.simpleString() != "map<string,string>":
        raise InvalidArgumentError(
            f"Column 'attributes' is {attributes.simpleString()} and must be map<string,string>"
        )
    if "data" not in schema.names:
        raise InvalidArgumentError("There is no column 'data' (binary or string) to publish")
    if not options.topic and "topic" not in schema.names:
        raise InvalidArgumentError("Set option 'topic', or give each row one in column 'topic'")


class TopicWriter(DataSourceArrowWriter):
    """A table to a topic. A task that is run again publishes the same ids again."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        if options.fence:
            raise InvalidArgumentError("fence=true is for streams, whose batches have numbers")
        self._options = options
        self._run = secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        partition = _task().partitionId()
        return asyncio.run(publish(self._options, iterator, f"{self._run}-{partition}"))


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """A stream to a topic. A batch that is run again publishes the same ids again."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise InvalidArgumentError("The stream sink was called outside a streaming query")
        prefix = f"{query}-{batch}-{task.partitionId()}"
        if not self._options.fence:
            return asyncio.run(publish(self._options, iterator, prefix))
        with open_fence(self._options, query, task.partitionId(), int(batch)) as fence:
            return asyncio.run(publish(self._options, iterator, prefix, fence))


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # noqa: S101
    return task


async def publish(
    options: SinkOptions,
    iterator: Iterator[pa.RecordBatch],
    prefix: str,
    fence: Fence | None = None,
) -> Written:
    """Publish every row; returns once all of them are stored."""
    rows = skipped = 0
    if fence is not None and fence.is_done:
        # Stored and sealed by an earlier attempt; only see that it was the same.
        async for batch in _batches(iterator):
            drafts = _drafts(batch, options.topic, prefix, rows)
            rows += len(drafts)
            fence.count(drafts)
        fence.check_same()
        return Written(rows, 0, rows)
    broker = await connected(options)
    try:
        sender = Sender(broker, options)
        async for batch in _batches(iterator):
            drafts = _drafts(batch, options.topic, prefix, rows)
            rows += len(drafts)
            if fence is not None:
                fence.count(drafts)
                drafts = fence.not_stored(drafts)
            skipped += batch.num_rows - len(drafts)
            size = max(1, options.max_in_flight // _CHUNKS)
            for at in range(0, len(drafts), size):
                await sender.send(drafts[at : at + size])
        await sender.finish()
    finally:
        await broker.aclose()
    if fence is not None:
        fence.seal()
    return Written(rows, sender.duplicates, skipped)


async def _batches(iterator: Iterator[pa.RecordBatch]) -> Any:
    """Batches of rows, the next one fetched while the last one is under way."""
    # Owned here; the iterator waits for Spark, and that must not hold up the connection.
    following = asyncio.ensure_future(asyncio.to_thread(next, iterator, None))
    try:
        while (batch := await following) is not None:
            following = asyncio.ensure_future(asyncio.to_thread(next, iterator, None))
            yield batch
    finally:
        if not following.done():
            with suppress(Exception):
                await following


def _drafts(batch: pa.RecordBatch, topic: str, prefix: str, first: int) -> list[tuple[str, Draft]]:
    """The rows of a batch with their topics."""
    count = batch.num_rows
    names = batch.schema.names

    def column(name: str) -> list[Any]:
        return batch.column(name).to_pylist() if name in names else [None] * count

    data = column("data")
    kind = batch.schema.field("data").type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        data = [text.encode() if text is not None else None for text in data]
    if None in data:
        raise InvalidArgumentError("Column 'data' is null in some row; filter these out")
    topics = [topic] * count if topic else column("topic")
    if None in topics:
        raise InvalidArgumentError("Column 'topic' is null in some row; filter these out")
    plain = not {"attributes", "ordering_key", "message_id", "subject"} & set(names)
    if plain and max(map(len, data), default=0) <= MAX_DATA_BYTES:
        return [
            (where, Draft(payload, {}, None, f"{prefix}-{row}"))
            for row, (where, payload) in enumerate(zip(topics, data, strict=True), first)
        ]
    attributes = [dict(pairs) if pairs else None for pairs in column("attributes")]
    of: Callable[..., Draft] = Draft.of
    return [
        (where, of(payload, pairs, key, name, subject, own_id=f"{prefix}-{row}"))
        for row, (where, payload, pairs, key, name, subject) in enumerate(
            zip(
                topics,
                data,
                attributes,
                column("ordering_key"),
                column("message_id"),
                column("subject"),
                strict=True,
            ),
            first,
        )
    ]
