"""A stage as a task of Spark: rows of messages in, each dealt with, a count out. What follows from
a message is committed with it; the driver's relay sends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.jobs.incoming import Incoming
from penstock.spark.jobs.columns import attributes_of
from penstock.spark.jobs.runner import Workplace

INPUT = ("topic", "message_id", "attributes", "data")
OUTPUT = "messages long"


@dataclass(frozen=True)
class StageTask:
    """What a task needs to run a stage."""

    workplace: Workplace
    stage: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            topics, ids, data = (
                batch.column(name).to_pylist() for name in ("topic", "message_id", "data")
            )
            attributes = attributes_of(batch.column("attributes"))
            messages = list(map(Incoming, topics, ids, attributes, data))
            self.workplace.runner().run(self.stage, messages)
            yield pa.RecordBatch.from_pydict({"messages": [len(messages)]})
