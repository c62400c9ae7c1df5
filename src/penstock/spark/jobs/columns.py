"""Columns of Arrow as values of Python."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa


def attributes_of(column: pa.MapArray | pa.ChunkedArray) -> list[dict[str, str]]:
    """The attributes of each row. Made from the keys and values of all rows at once: asking Arrow
    for one map after the other takes several times as long as decoding the message does."""
    found: list[dict[str, str]] = []
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        keys, values = chunk.keys.to_pylist(), chunk.items.to_pylist()
        ends = chunk.offsets.to_pylist()
        found += [
            dict(zip(keys[begin:end], values[begin:end], strict=True))
            for begin, end in pairwise(ends)
        ]
    return found
