"""Rows to drafts, and what a row is called that brings no id of its own.

Ids by position would give a stored id to another row as soon as a batch is cut differently the
second time, and the broker would take that row for a duplicate and drop it. So an id says what the
row is: where it came from, where that is known, and a digest of all that it holds. Equal rows of a
task are numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import InvalidArgumentError
from penstock.message import MAX_DATA_BYTES, Draft

Addressed = tuple[str, Draft]
"""A draft and its topic."""

_DIGEST_BYTES = 12
_TELLING = ("attributes", "ordering_key", "subject", "message_id")


class Rows:
    """The rows of one task as drafts.

    `topic`: for all of them, or each row has one. `query` and `batch` say what the task is a part
    of: equal rows of two batches are two messages.
    """

    def __init__(self, topic: str, query: str, batch: str) -> None:
        self._topic = topic
        self._query = query
        self._batch = batch
        self._seen: dict[str, int] = {}

    def drafts(self, batch: pa.RecordBatch) -> list[Addressed]:
        names = batch.schema.names
        data, topics = _data(batch), _topics(batch, self._topic)
        scopes = self._scopes(batch)
        if not set(_TELLING) & set(names) and max(map(len, data), default=0) <= MAX_DATA_BYTES:
            return [
                (topic, Draft(payload, {}, None, self._named(scope, _digest(payload))))
                for topic, payload, scope in zip(topics, data, scopes, strict=True)
            ]
        attributes = [dict(pairs) if pairs else None for pairs in _column(batch, "attributes")]
        of: Callable[..., Draft] = Draft.of
        told = zip(
            *(data, attributes),
            *(_column(batch, name) for name in ("ordering_key", "message_id", "subject")),
            strict=True,
        )
        return [
            (topic, of(*row, own_id=row[3] or self._named(scope, _digest_of(topic, *row))))
            for topic, scope, row in zip(topics, scopes, told, strict=True)
        ]

    def _scopes(self, batch: pa.RecordBatch) -> Iterator[str]:
        """What each row's id begins with: its place in the source, else the batch."""
        names = batch.schema.names
        own = f"{self._query}-{self._batch}"
        if "sequence" not in names:
            return iter([own] * batch.num_rows)
        sequences = batch.column("sequence").to_pylist()
        if self._topic and "topic" in names:
            sources = batch.column("topic").to_pylist()
            # A row of an outer join may come from nowhere.
            return (
                own if source is None or sequence is None else f"{self._query}-{source}-{sequence}"
                for source, sequence in zip(sources, sequences, strict=True)
            )
        return (f"{own}-{sequence}" for sequence in sequences)

    def _named(self, scope: str, digest: str) -> str:
        name = f"{scope}-{digest}"
        times = self._seen.get(name, 0)
        self._seen[name] = times + 1
        return f"{name}-{times}" if times else name


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _digest_of(
    topic: str,
    data: bytes,
    attributes: dict[str, str] | None,
    key: str | None,
    _: str | None,
    subject: str | None,
) -> str:
    digest = blake2b(data, digest_size=_DIGEST_BYTES)
    pairs = sorted(attributes.items()) if attributes else []
    digest.update(msgspec.json.encode([topic, pairs, key, subject, len(data)]))
    return digest.hexdigest()


def _data(batch: pa.RecordBatch) -> list[bytes]:
    data: list[Any] = batch.column("data").to_pylist()
    kind = batch.schema.field("data").type
    if None in data:
        raise InvalidArgumentError("Column 'data' is null in some row; filter these out")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [text.encode() for text in data]
    return data


def _topics(batch: pa.RecordBatch, topic: str) -> list[str]:
    topics = [topic] * batch.num_rows if topic else _column(batch, "topic")
    if None in topics:
        raise InvalidArgumentError("Column 'topic' is null in some row; filter these out")
    return topics


def _column(batch: pa.RecordBatch, name: str) -> list[Any]:
    there = name in batch.schema.names
    return batch.column(name).to_pylist() if there else [None] * batch.num_rows
