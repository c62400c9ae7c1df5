"""Rows to messages: what the sink does in each task."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator, Sequence
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
from penstock.spark.options import SinkOptions
from penstock.spark.sink.fence import Attempt, Fence, Tally, open_fence
from penstock.spark.sink.rows import Rows
from penstock.spark.sink.sender import Sender, connected
from penstock.spark.sink_counts import count_sunk

_log = logging.getLogger("penstock.spark")
_TEXT = (StringType,)
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "data": (BinaryType, StringType),
    "attributes": (MapType,),
    "ordering_key": _TEXT,
    "message_id": _TEXT,
    "subject": _TEXT,
    "topic": _TEXT,
}
# The source's own, which are no part of a message to be; ids are made of the first.
_IGNORED = ("sequence", "publish_time", "headers")
_CHUNKS = 8


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task did. `duplicates`: rows the broker had already, `unexpected`: those of them
    that no earlier attempt at this task explains. `skipped`: rows that an earlier attempt had
    stored."""

    rows: int
    duplicates: int
    unexpected: int
    skipped: int
    digest: int
    attempt: Attempt


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
        task = _task()
        _refuse_table(task)
        # Within its partition: tables have equal rows, and a task that is run again has the same.
        rows = Rows(self._options.topic, self._run, str(task.partitionId()))
        attempt = Attempt(self._run, 0, self._run)
        return asyncio.run(publish(self._options, iterator, rows, attempt))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _count(_written(messages), self._options.topic, "the table")


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """A stream to a topic. A batch that is run again publishes the same ids again."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._brings_ids = "message_id" in schema.names
        # Made once for each attempt at a batch, and travels with its tasks.
        self._attempt = secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise InvalidArgumentError("The stream sink was called outside a streaming query")
        rows = Rows(self._options.topic, query, batch)
        attempt = Attempt(query, int(batch), self._attempt)
        if not self._options.fence:
            return asyncio.run(publish(self._options, iterator, rows, attempt))
        with open_fence(self._options, attempt) as fence:
            named = "" if self._brings_ids else query
            fence.begin(task_again=task.attemptNumber() > 0, named=named)
            return asyncio.run(publish(self._options, iterator, rows, attempt, fence))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Called in the driver once every task has ended, by a writer of its own."""
        written = _written(messages)
        _count(written, self._options.topic, f"batch {batchId}")
        if self._options.fence and written:
            tally = Tally()
            for one in written:
                tally.add(one.rows, one.digest)
            with open_fence(self._options, written[0].attempt) as fence:
                fence.seal(tally)


def _refuse_table(task: TaskContext) -> None:
    """Refuse to be what Spark makes a table of; it drops the table then. Nobody says that to a
    source, but such a write belongs to an execution within that of the command, as otherwise only
    those of streams do."""
    execution = task.getLocalProperty("spark.sql.execution.id")
    command = task.getLocalProperty("spark.sql.execution.root.id")
    if execution != command and task.getLocalProperty("streaming.sql.batchId") is None:
        raise InvalidArgumentError(
            "A topic cannot be a table of the catalog: Spark 4.3 gives a Python source none of the "
            "options of a table that is read. Nothing was published. Publish with save(), or to a "
            "view: CREATE TEMPORARY VIEW x USING penstock OPTIONS (…), and insertInto('x')"
        )


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # noqa: S101
    return task


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def _count(written: Sequence[Written], topic: str, what: str) -> None:
    """Count what was done, and warn of duplicates."""
    found = sum(one.unexpected for one in written)
    count_sunk(topic, sum(one.rows for one in written), found)
    if found:
        _log.warning(
            "%d of the %d rows of %s were not stored, because the topic has messages of the same "
            "id: it was run before, or rows are equal in all they say. If equal rows are messages "
            "of their own, give each a message_id, or select topic and sequence of its source too",
            *(found, sum(one.rows for one in written), what),
        )


async def publish(
    options: SinkOptions,
    iterator: Iterator[pa.RecordBatch],
    rows: Rows,
    attempt: Attempt,
    fence: Fence | None = None,
) -> Written:
    """Publish every row; returns once all of them are stored."""
    tally = Tally()
    if fence is not None and fence.is_done:
        # Stored and sealed by an earlier attempt; whether it was the same is seen when all is told.
        async for batch in _batches(iterator):
            tally.count(rows.drafts(batch))
        return Written(tally.rows, 0, 0, tally.rows, tally.digest, attempt)
    skipped = 0
    broker = await connected(options)
    try:
        sender = Sender(broker, options)
        async for batch in _batches(iterator):
            drafts = rows.drafts(batch)
            if fence is not None:
                if tally.rows:
                    # Who has lost the batch meanwhile publishes no more of it.
                    await asyncio.to_thread(fence.check)
                tally.count(drafts)
                drafts = fence.not_stored(drafts)
            else:
                tally.rows += len(drafts)
            skipped += batch.num_rows - len(drafts)
            size = max(1, options.max_in_flight // _CHUNKS)
            for at in range(0, len(drafts), size):
                await sender.send(drafts[at : at + size])
        await sender.finish()
    finally:
        await broker.aclose()
    if fence is not None:
        fence.check()
    explained = _task().attemptNumber() > 0 or (fence is not None and not fence.is_first)
    unexpected = 0 if explained else sender.unexpected
    return Written(tally.rows, sender.duplicates, unexpected, skipped, tally.digest, attempt)


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
