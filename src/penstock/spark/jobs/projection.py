"""Job events to the read model and to a history for analysts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from penstock.jobs.model.codec import InvalidMessageError
from penstock.jobs.model.event import StageEvent
from penstock.jobs.pipeline.declaration import Pipeline, pipeline_of
from penstock.jobs.views.sql import SqlJobViews
from penstock.transactional import Database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger("penstock.spark")

_FIELDS = (
    "event string, jobId string, userId string, mediaType string, run int, at timestamp, "
    "previous string, correlationId string"
)
_SQL = {
    msgspec.inspect.IntType: "long",
    msgspec.inspect.FloatType: "double",
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.DateTimeType: "timestamp",
}
_COUNTS = "applied long, changed long, skipped long"


@dataclass(frozen=True)
class ApplyTask:
    """Applies the events of a partition to the read model in the database."""

    database: str
    pipeline: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        applied, changed, skipped = asyncio.run(self._apply(batches))
        yield pa.RecordBatch.from_pydict(
            {"applied": [applied], "changed": [changed], "skipped": [skipped]}
        )

    async def _apply(self, batches: Iterator[pa.RecordBatch]) -> tuple[int, int, int]:
        applied = changed = skipped = 0
        pipeline = pipeline_of(self.pipeline)
        decode_event = pipeline.codec.decode_event
        async with (
            Database(self.database) as database,
            SqlJobViews(database, pipeline=pipeline) as views,
        ):
            for batch in batches:
                events = []
                for data, attributes in zip(
                    batch.column("data").to_pylist(),
                    batch.column("attributes").to_pylist(),
                    strict=True,
                ):
                    try:
                        events.append(decode_event(data, dict(attributes)))
                    except InvalidMessageError:
                        skipped += 1
                changed += len(await views.apply(events))
                applied += len(events)
        return applied, changed, skipped


@dataclass(frozen=True)
class Project:
    """What is done with each micro-batch of events. Doing it again changes nothing."""

    database: str
    pipeline: str
    history: str | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        columns = batch.select("sequence", "publish_time", "attributes", "data")
        # All events of a job in one place, in order: then nobody else changes its view.
        keyed = columns.repartition(F.col("attributes")["jobId"]).sortWithinPartitions("sequence")
        counted = keyed.mapInArrow(ApplyTask(self.database, self.pipeline), _COUNTS)
        totals = counted.agg(F.sum("applied"), F.sum("changed"), F.sum("skipped")).first()
        if totals is not None and totals[2]:
            _log.warning("%d messages of a batch are no events and were skipped", totals[2])
        if self.history is not None:
            # The batch's own folder: a batch that is run again replaces what it wrote.
            events = history(columns, pipeline_of(self.pipeline))
            events.write.mode("overwrite").parquet(f"{self.history}/batch={batch_id}")


def history(events: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Events as columns, a column for each fact that an event of the pipeline tells; what is no
    event is left out."""
    facts = {name: _column(kind, name) for name, kind in pipeline.facts.items()}
    told = ", ".join(f"`{wire}` {type_}" for wire, type_ in facts.values())
    read = events.select(
        "sequence",
        "publish_time",
        F.col("attributes")["stage"].alias("stage"),
        F.from_json(F.col("data").cast("string"), f"{_FIELDS}, {told}").alias("e"),
    )
    return read.where("e.jobId IS NOT NULL").select(
        "sequence",
        "publish_time",
        F.col("e.event").alias("event"),
        F.col("e.jobId").alias("job_id"),
        F.col("e.userId").alias("user_id"),
        F.col("e.mediaType").alias("media_type"),
        "stage",
        F.col("e.previous").alias("previous_stage"),
        F.col("e.run").alias("run"),
        F.col("e.at").alias("at"),
        *(F.col(f"e.`{wire}`").alias(name) for name, (wire, _) in facts.items()),
        F.col("e.correlationId").alias("correlation_id"),
    )


def _column(kind: type[StageEvent], name: str) -> tuple[str, str]:
    """What a field is called in JSON, and its type in SQL."""
    if name == "attempts":
        return name, "int"
    [found] = [field for field in msgspec.structs.fields(kind) if field.name == name]
    info = msgspec.inspect.type_info(found.type)
    types = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    for one in types:
        if type(one) in _SQL:
            return found.encode_name, _SQL[type(one)]
    return found.encode_name, "string"
