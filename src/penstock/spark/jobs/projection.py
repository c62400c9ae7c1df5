"""Job events to the read model and to a history for analysts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.jobs.model.codec import InvalidMessageError
from penstock.jobs.pipeline.declaration import PROJECTION, pipeline_of
from penstock.spark.jobs.columns import attributes_of
from penstock.spark.jobs.history import History, Told
from penstock.spark.jobs.progress import count_ended, say_repeated
from penstock.spark.jobs.workplace import Workplace
from penstock.spark.ranges import open_patiently

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_log = logging.getLogger("penstock.spark")
_COLUMNS = ("sequence", "publish_time", "attributes", "data")
_PATIENCE = 60.0


@dataclass(frozen=True)
class Project:
    """What is done with each micro-batch of events. Doing it again changes nothing.

    Events are small, and what they change is one database and one table: a batch is read once, and
    dealt with where the driver is, in the order of the topic.
    """

    workplace: Workplace
    url: str
    topic: str
    history: str | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = batch.select(*_COLUMNS).toArrow().sort_by("sequence")
        events = list(self._events(rows))
        if len(events) < rows.num_rows:
            _log.warning(
                "%d messages of batch %d of topic %r are no events and were skipped",
                *(rows.num_rows - len(events), batch_id, self.topic),
            )
        if not events:
            return
        self.workplace.runner().apply([told.event for told in events])
        count_ended(pipeline_of(self.workplace.pipeline), self.topic, events)
        if self.history is not None:
            history = History(self.history, pipeline_of(self.workplace.pipeline))
            say_repeated(PROJECTION, len(events) - history.append(self._source(), events))

    def _events(self, rows: pa.Table) -> Iterator[Told]:
        decode_event = pipeline_of(self.workplace.pipeline).codec.decode_event
        sequences, published, data = (
            rows.column(name).to_pylist() for name in ("sequence", "publish_time", "data")
        )
        attributes = attributes_of(rows.column("attributes"))
        for sequence, at, said, given in zip(sequences, published, data, attributes, strict=True):
            try:
                yield Told(sequence, at, decode_event(said, given))
            except InvalidMessageError:
                continue

    def _source(self) -> str:
        """The topic; one that was deleted and made again counts anew, and is another."""
        log = open_patiently(self.url, _PATIENCE, proven=True)
        try:
            return f"{self.topic}@{log.extent(self.topic).identity}"
        finally:
            log.close()
