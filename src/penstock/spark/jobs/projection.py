"""Job events to the read model and to a history for analysts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from penstock.columns import Columns
from penstock.jobs.model.codec import InvalidMessageError
from penstock.jobs.pipeline.declaration import PROJECTION, pipeline_of
from penstock.spark.jobs.columns import attributes_of
from penstock.spark.jobs.history import History, Told
from penstock.spark.jobs.progress import count_ended, say_repeated
from penstock.spark.jobs.workplace import Workplace
from penstock.spark.options import SourceOptions
from penstock.spark.source.reader import LogRange, read_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger("penstock.spark")
_COLUMNS = ("sequence", "publish_time", "attributes", "data")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NONE: Mapping[str, str] = {}
_Message = tuple[int, datetime, bytes, Mapping[str, str]]


@dataclass(frozen=True)
class Project:
    """What is done with each micro-batch of events. Doing it again changes nothing.

    Events are small, and what they change is one database and one table: a batch is read once, and
    dealt with where the driver is, in the order of the topic. `log`: how to read the topic, of
    which a batch has the sequences; without it a batch has the messages.
    """

    workplace: Workplace
    topic: str
    history: str | None = None
    log: SourceOptions | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        part = None if self.log is None else self._part(batch)
        found = self._brought(batch) if self.log is None else self._read(self.log, part)
        # One that was deleted and made again counts anew, and is another.
        source = f"{self.topic}@{'' if part is None else part.identity}"
        decode_event = pipeline_of(self.workplace.pipeline).codec.decode_event
        events: list[Told] = []
        strange = 0
        for sequence, at, data, attributes in found:
            try:
                events.append(Told(sequence, at, decode_event(data, attributes)))
            except InvalidMessageError:
                strange += 1
        if strange:
            _log.warning(
                "%d messages of batch %d of topic %r are no events and were skipped",
                *(strange, batch_id, self.topic),
            )
        if not events:
            return
        self.workplace.runner().apply([told.event for told in events])
        pipeline = pipeline_of(self.workplace.pipeline)
        again = count_ended(pipeline, source, events)
        if self.history is not None:
            added = History(self.history, pipeline).append(source, events)
            again = len(events) - added
        say_repeated(PROJECTION, again)

    def _brought(self, batch: DataFrame) -> Iterator[_Message]:
        rows = batch.select(*_COLUMNS).toArrow().sort_by("sequence")
        sequences, published, data = (
            rows.column(name).to_pylist() for name in ("sequence", "publish_time", "data")
        )
        return zip(
            sequences, published, data, attributes_of(rows.column("attributes")), strict=True
        )

    def _part(self, batch: DataFrame) -> LogRange | None:
        """All between the first and the last, which are the ends of the batch, of the topic that it
        was planned with."""
        rows = batch.toArrow()
        if not len(rows):
            return None
        first, last = pc.min_max(rows.column("sequence")).as_py().values()
        [identity] = pc.unique(rows.column("identity").drop_null()).to_pylist()
        return LogRange(self.topic, first, last, identity)

    def _read(self, log: SourceOptions, part: LogRange | None) -> Iterator[_Message]:
        for columns in read_columns(log, part) if part is not None else ():
            yield from _messages(columns)


def _messages(columns: Columns) -> Iterator[_Message]:
    moments = (_EPOCH + timedelta(microseconds=us) for us in columns.published_us)
    attributes = map(columns.attributes.get, range(len(columns)), repeat(_NONE))
    return zip(columns.sequences, moments, columns.data, attributes, strict=True)
