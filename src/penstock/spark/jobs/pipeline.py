"""The stages of media jobs as Structured Streaming queries, each with a checkpoint of its own.

    job-processing ─▶ metadata       ─▶ store and outbox
    job-processing ─▶ transcription  ─▶ store and outbox
    job-events     ─▶ projection     ─▶ read model, history
    outbox         ─▶ relay          ─▶ job-processing, job-events

The stages are those that the asyncio worker runs, and the relay is the same, in a thread of the
driver. A batch that is run again finds in the store what was done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidArgumentError
from penstock.jobs.settings import JobSettings
from penstock.spark.jobs.driver_relay import DriverRelay
from penstock.spark.jobs.progress import report
from penstock.spark.jobs.projection import Project
from penstock.spark.jobs.stage_task import HANDLERS, INPUT, OUTPUT, StageTask, stage_factories
from penstock.spark.session.starting import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger("penstock.spark")

STAGES = ("metadata", "transcription")
PROJECTION = "projection"
ALL = (*STAGES, PROJECTION)
_LOOK = 0.1
_MOST_RESTARTS_IN_A_ROW = 20


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """`checkpoints`: a folder that the driver and all executors see; each query has its own in it.
    `history`: where events go as Parquet, if anywhere. `trigger`: seconds between batches.
    `batch`: messages that a stage looks at in one of them. `partition`: of those, how many one
    task works on. `drain`: seconds a batch gets to end when the pipeline is stopped."""

    checkpoints: str
    history: str | None = None
    stages: Sequence[str] = ALL
    handlers: str = HANDLERS
    trigger: float = 0.5
    batch: int = 2000
    partition: int = 50
    drain: float = 60.0

    def __post_init__(self) -> None:
        unknown = set(self.stages) - set(ALL)
        if unknown or not self.stages:
            raise InvalidArgumentError(
                f"Stages are {', '.join(ALL)}, not {', '.join(sorted(unknown)) or 'none'}"
            )
        for name in ("batch", "partition"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be at least 1")


class Pipeline:
    """The queries of a pipeline on one session."""

    def __init__(
        self, spark: SparkSession, settings: JobSettings, options: PipelineOptions
    ) -> None:
        if settings.url.startswith("memory:"):
            raise InvalidArgumentError(
                "Spark runs in processes of its own, which cannot see memory://; use local://DIR "
                "or nats://…"
            )
        stage_factories(options.handlers)
        self._spark = spark
        self._settings = settings
        self._options = options
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let the batches that run come to their end, then end `run`. Safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Run until stopped. A query that fails is started again from its checkpoint, each time
        after a longer pause."""
        activate(self._spark)
        with ExitStack() as stack:
            if set(self._options.stages) & set(STAGES):
                stack.enter_context(DriverRelay(self._settings))
            queries = {name: _Kept(self, name) for name in self._options.stages}
            try:
                while not self._stopping.is_set():
                    for query in queries.values():
                        query.look()
                    self._stopping.wait(_LOOK)
            finally:
                for query in queries.values():
                    query.end(self._options.drain)

    def backfill(self) -> None:
        """Work through all there is now, stage by stage, and return. What is to be tried again
        later stays in the outbox, for whoever runs next."""
        activate(self._spark)
        with DriverRelay(self._settings) as relay:
            for name in self._options.stages:
                query = self.start(name, once=True)
                while not query.awaitTermination(1):
                    report(name, query)
                    if self._stopping.is_set():
                        query.stop()
                        return
                report(name, query)
                # What one stage says is what the next works through.
                relay.wait_until_sent(self._options.drain)

    def start(self, name: str, *, once: bool = False) -> StreamingQuery:
        """Start the query of a stage, from where its checkpoint says."""
        writer = self._projection() if name == PROJECTION else self._stage(name)
        folder = f"{self._options.checkpoints.rstrip('/')}/{name}"
        if "://" not in folder:
            folder = str(Path(folder).absolute())
        writer = writer.queryName(name).option("checkpointLocation", folder)
        if once:
            return writer.trigger(availableNow=True).start()
        milliseconds = max(0, round(self._options.trigger * 1000))
        return writer.trigger(processingTime=f"{milliseconds} milliseconds").start()

    def _stage(self, name: str) -> DataStreamWriter:
        task = StageTask(self._settings, name, self._options.handlers)
        jobs = self._read(
            topics=",".join(self._settings.topics.work),
            filter=task.stage_settings.filter,
            maxRecordsPerPartition=str(self._options.partition),
        )
        return jobs.select(*INPUT).mapInArrow(task, OUTPUT).writeStream.format("noop")

    def _projection(self) -> DataStreamWriter:
        history = self._options.history
        if history is not None and "://" not in history:
            history = str(Path(history).absolute())
        events = self._read(topics=self._settings.topics.events)
        return events.writeStream.foreachBatch(Project(self._settings.database, history))

    def _read(self, **options: Any) -> DataFrame:
        return (
            self._spark.readStream.format("penstock")
            .option("url", self._settings.url)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(self._options.batch))
            .options(**options)
            .load()
        )


class _Kept:
    """A query that is kept running."""

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        self._pipeline = pipeline
        self._name = name
        self._failures = 0
        self._not_before = 0.0
        self._query = pipeline.start(name)

    def look(self) -> None:
        if self._query.isActive:
            if report(self._name, self._query):
                self._failures = 0
            return
        if self._not_before == 0.0:
            self._failed()
        elif time.monotonic() >= self._not_before:
            self._not_before = 0.0
            self._query = self._pipeline.start(self._name)

    def _failed(self) -> None:
        self._failures += 1
        error = self._query.exception()
        if self._failures > _MOST_RESTARTS_IN_A_ROW and error is not None:
            raise error
        pause = min(30.0, 0.5 * 2 ** (self._failures - 1))
        self._not_before = time.monotonic() + pause
        reason = str(error).partition("\n")[0][:300]
        _log.error("%s failed and starts again in %.1f s: %s", self._name, pause, reason)

    def end(self, drain: float) -> None:
        """Stopping a query ends its tasks; so wait for a moment between two batches."""
        until = time.monotonic() + drain
        while self._query.isActive and time.monotonic() < until:
            if not self._query.status["isTriggerActive"]:
                break
            time.sleep(0.01)
        report(self._name, self._query)
        self._query.stop()
