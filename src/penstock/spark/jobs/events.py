"""Events of jobs as rows with the columns of the history, made by Spark itself: for streams, and
for tables of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.jobs.model.event import StageEvent
from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.pipeline.media import MEDIA
from penstock.spark.jobs.history import type_of_fact

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What all events have, as JSON calls it, and the names in the history.
_COMMON = {
    "event": ("event", "string"),
    "jobId": ("job_id", "string"),
    "userId": ("user_id", "string"),
    "mediaType": ("media_type", "string"),
    "previous": ("previous_stage", "string"),
    "run": ("run", "int"),
    "at": ("at", "timestamp"),
    "took": ("took", "double"),
    "retries": ("retries", "int"),
    "correlationId": ("correlation_id", "string"),
}


def events_of(messages: DataFrame, pipeline: Pipeline = MEDIA) -> DataFrame:
    """Rows of what was read from the topic of the events, as a table or a stream. What is no event
    is left out; `source` is the topic."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_type

    facts = {
        name: from_arrow_type(type_of_fact(kind, name)).simpleString()
        for name, kind in pipeline.facts.items()
    }
    common = [f"{key} {kind}" for key, (_, kind) in _COMMON.items()]
    own = [f"{_key(kind, name)} {facts[name]}" for name, kind in pipeline.facts.items()]
    read = f.from_json(f.col("data").cast("string"), ", ".join([*common, *own]))
    told = messages.withColumn("told", read).where("told.jobId IS NOT NULL")
    return told.select(
        f.col("topic").alias("source"),
        "sequence",
        "publish_time",
        f.col("attributes")["stage"].alias("stage"),
        *(f.col(f"told.{key}").alias(name) for key, (name, _) in _COMMON.items()),
        *(_fact(kind, name) for name, kind in pipeline.facts.items()),
        f.to_date("told.at").alias("day"),
    ).fillna({"retries": 0})


def _fact(kind: type[StageEvent], name: str) -> Column:
    """What a message leaves out because it is usual is said."""
    from pyspark.sql import functions as f

    value, field = f.col(f"told.{_key(kind, name)}"), _field(kind, name)
    if field.default in (msgspec.NODEFAULT, None):
        return value.alias(name)
    is_told = f.col("told.event").eqNullSafe(str(kind.__struct_config__.tag))
    usual = f.when(is_told, f.lit(field.default))
    return f.coalesce(value, usual).alias(name)


def _key(kind: type[StageEvent], name: str) -> str:
    return _field(kind, name).encode_name


def _field(kind: type[StageEvent], name: str) -> msgspec.structs.FieldInfo:
    [found] = [field for field in msgspec.structs.fields(kind) if field.name == name]
    return found
