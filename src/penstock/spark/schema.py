"""The columns of the source, and records as Arrow."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.columns import Columns
from penstock.errors import InvalidArgumentError

_TEXTS = MapType(StringType(), StringType(), valueContainsNull=False)


def source_schema(*, headers: bool) -> StructType:
    fields = [
        StructField("topic", StringType(), nullable=False),
        StructField("sequence", LongType(), nullable=False),
        StructField("subject", StringType(), nullable=False),
        StructField("message_id", StringType(), nullable=False),
        StructField("ordering_key", StringType(), nullable=True),
        StructField("attributes", _TEXTS, nullable=False),
        StructField("data", BinaryType(), nullable=False),
        StructField("publish_time", TimestampType(), nullable=False),
    ]
    if headers:
        fields.append(StructField("headers", _TEXTS, nullable=False))
    return StructType(fields)


def check_schema(given: StructType, *, headers: bool) -> None:
    """The columns are what they are; a schema of the user's own must name the same."""
    ours = source_schema(headers=headers)
    wanted = [(field.name, field.dataType.simpleString()) for field in ours]
    if [(field.name, field.dataType.simpleString()) for field in given] != wanted:
        raise InvalidArgumentError(
            "The columns of penstock are fixed: leave out .schema(…) and select from "
            + ", ".join(f"{name} {kind}" for name, kind in wanted)
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark expects it, to the last flag."""
    return to_arrow_schema(schema, timezone="UTC")


def to_batch(schema: pa.Schema, topic: str, columns: Columns) -> pa.RecordBatch:
    """Columns as one Arrow batch."""
    count = len(columns)
    keys = columns.keys
    arrays = {
        "topic": _repeated(topic, count),
        "sequence": pa.array(columns.sequences, pa.int64()),
        "subject": _text(columns.subjects),
        "message_id": _text(columns.ids),
        "ordering_key": pa.array([keys.get(row) for row in range(count)], pa.string())
        if keys
        else pa.nulls(count, pa.string()),
        "attributes": _texts(columns.attributes, count, schema.field("attributes").type),
        "data": pa.array(columns.data, pa.binary()),
        "publish_time": pa.array(columns.published_us, pa.timestamp("us", tz="UTC")),
    }
    if "headers" in schema.names:
        arrays["headers"] = _texts(columns.headers, count, schema.field("headers").type)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _text(values: list[bytes]) -> pa.Array:
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        # Not everybody who publishes sends UTF-8.
        return pa.array([value.decode(errors="replace") for value in values], pa.string())


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _texts(by_row: dict[int, dict[str, str]], count: int, kind: pa.DataType) -> pa.Array:
    """Maps of text, of which most rows have none."""
    keys: list[str] = []
    values: list[str] = []
    offsets = [0] * (count + 1)
    if by_row:
        for row in range(count):
            found = by_row.get(row)
            if found:
                keys += found.keys()
                values += found.values()
            offsets[row + 1] = len(keys)
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string()),
        type=kind,
    )  # fmt: skip
