"""The stages of a pipeline as Structured Streaming queries, each with a checkpoint of its own.

    job-processing ─▶ each stage   ─▶ store and outbox
    job-events     ─▶ projection   ─▶ read model, history
    outbox         ─▶ relay        ─▶ job-processing, job-events

The stages are those that the asyncio worker runs, and the relay is the same, in a thread of the
driver. A batch that is run again finds in the store what was done.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connect import broker_kind
from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.jobs.pipeline.declaration import PROJECTION, pipeline_of
from penstock.jobs.pipeline.media import MEDIA_REFERENCE
from penstock.jobs.settings import JobSettings
from penstock.retrying import Failures, Persistence
from penstock.rules.backoff import Backoff
from penstock.spark.jobs.driver_relay import DriverRelay
from penstock.spark.jobs.progress import report
from penstock.spark.jobs.projection import Project
from penstock.spark.jobs.queues import make_queues
from penstock.spark.jobs.stage_task import INPUT, OUTPUT, StageTask
from penstock.spark.session.starting import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger("penstock.spark")

_LOOK = 0.1
_RESTARTING = Persistence(
    backoff=Backoff(initial=0.5, maximum=30.0), attempts=21, worth_it=lambda _: True
)


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """`checkpoints`: a folder that the driver and all executors see; each query has its own in it.
    `history`: where events go as Parquet, if anywhere. `pipeline`: where the tasks find it, as
    `module:NAME`. `stages`: the names of those to run, and `projection`; all unless given.
    `trigger`: seconds between batches. `batch`: messages that a stage looks at in one of them.
    `partition`: of those, how many one task works on. `drain`: seconds a batch gets to end when
    the pipeline is stopped."""

    checkpoints: str
    history: str | None = None
    pipeline: str = MEDIA_REFERENCE
    stages: Sequence[str] | None = None
    trigger: float = 0.5
    batch: int = 2000
    partition: int = 50
    drain: float = 60.0

    def __post_init__(self) -> None:
        for name in ("batch", "partition"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be at least 1")


def queries_of(settings: JobSettings, options: PipelineOptions) -> tuple[str, ...]:
    """The names of the queries to run; an error when they cannot be run like that."""
    if not broker_kind(settings.url).shared:
        scheme = settings.url.partition("://")[0]
        raise InvalidArgumentError(
            f"Spark runs in processes of its own, which cannot see {scheme}://; use local://DIR or "
            "nats://…"
        )
    if broker_kind(settings.url).ranges is None and "://" in options.checkpoints:
        raise InvalidArgumentError(
            "A broker without a log is read through a spool beside the checkpoints; give a folder "
            "for them that the driver and all executors see"
        )
    pipeline = pipeline_of(options.pipeline)
    if pipeline is not settings.pipeline:
        raise InvalidArgumentError(
            f"The settings are for pipeline {settings.pipeline.name!r}, and {options.pipeline} is "
            f"{pipeline.name!r}; load them with load_settings(pipeline={options.pipeline!r})"
        )
    every = (*(stage.name for stage in pipeline.stages), PROJECTION)
    chosen = every if options.stages is None else tuple(options.stages)
    unknown = set(chosen) - set(every)
    if unknown or not chosen:
        raise InvalidArgumentError(
            f"Stages are {', '.join(every)}, not {', '.join(sorted(unknown)) or 'none'}"
        )
    return chosen


class SparkPipeline:
    """The queries of a pipeline on one session."""

    def __init__(
        self, spark: SparkSession, settings: JobSettings, options: PipelineOptions
    ) -> None:
        self._queries = queries_of(settings, options)
        self._spark = spark
        self._settings = settings
        self._options = options
        self._has_log = broker_kind(settings.url).ranges is not None
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let the batches that run come to their end, then end `run`. Safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Run until stopped. A query that fails is started again from its checkpoint, each time
        after a longer pause."""
        activate(self._spark)
        self._prepare()
        with ExitStack() as stack:
            if set(self._queries) != {PROJECTION}:
                stack.enter_context(DriverRelay(self._settings))
            queries = {name: _Kept(self, name) for name in self._queries}
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
        self._prepare()
        with DriverRelay(self._settings) as relay:
            for name in self._queries:
                query = self.start(name, once=True)
                while not query.awaitTermination(1):
                    report(name, query)
                    if self._stopping.is_set():
                        query.stop()
                        return
                report(name, query)
                # What one stage says is what the next works through.
                relay.wait_until_sent(self._options.drain)

    def _prepare(self) -> None:
        """Queues hold what is published once they are there; a log is there by itself."""
        if not self._has_log:
            asyncio.run(make_queues(self._settings, events=PROJECTION in self._queries))

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
        settings = self._settings.stages.of(self._settings.pipeline.stage(name))
        task = StageTask(self._settings.to_json(), self._options.pipeline, name)
        if self._has_log:
            jobs = self._read(
                topics=",".join(self._settings.topics.work),
                filter=settings.filter,
                maxRecordsPerPartition=str(self._options.partition),
            )
        else:
            queues = self._settings.subscriptions_of(settings).values()
            jobs = reduce(lambda one, other: one.union(other), map(self._read_queue, queues))
        return jobs.select(*INPUT).mapInArrow(task, OUTPUT).writeStream.format("noop")

    def _projection(self) -> DataStreamWriter:
        history = self._options.history
        if history is not None and "://" not in history:
            history = str(Path(history).absolute())
        if self._has_log:
            events = self._read(topics=self._settings.topics.events)
        else:
            events = self._read_queue(self._settings.api.spark_subscription)
        project = Project(self._settings.database, self._options.pipeline, history)
        return events.writeStream.foreachBatch(project)

    def _read(self, **options: Any) -> DataFrame:
        return (
            self._spark.readStream.format("penstock")
            .option("url", self._settings.url)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(self._options.batch))
            .options(**options)
            .load()
        )

    def _read_queue(self, subscription: str) -> DataFrame:
        spool = f"{self._options.checkpoints.rstrip('/')}/spools/{subscription}"
        return (
            self._spark.readStream.format("penstock")
            .option("url", self._settings.url)
            .option("subscription", subscription)
            .option("spoolLocation", str(Path(spool).absolute()))
            .option("maxOffsetsPerTrigger", str(self._options.batch))
            .option("segmentSeconds", str(max(0.1, min(1.0, self._options.trigger))))
            .load()
        )


class _Kept:
    """A query that is kept running."""

    def __init__(self, pipeline: SparkPipeline, name: str) -> None:
        self._pipeline = pipeline
        self._name = name
        self._failures = Failures(_RESTARTING)
        self._not_before = 0.0
        self._query = pipeline.start(name)

    def look(self) -> None:
        if self._query.isActive:
            if report(self._name, self._query):
                self._failures.clear()
            return
        if self._not_before == 0.0:
            self._failed()
        elif time.monotonic() >= self._not_before:
            self._not_before = 0.0
            self._query = self._pipeline.start(self._name)

    def _failed(self) -> None:
        error = self._query.exception() or UnavailableError(f"Query {self._name} ended")
        now = time.monotonic()
        pause = self._failures.pause_after(error, now, lambda: 1.0)
        if pause is None:
            raise error
        self._not_before = now + pause
        reason = str(error).partition("\n")[0][:300]
        _log.error("Query %s failed and starts again in %.1f s: %s", self._name, pause, reason)

    def end(self, drain: float) -> None:
        """Stopping a query ends its tasks; so wait for a moment between two batches."""
        until = time.monotonic() + drain
        while self._query.isActive and time.monotonic() < until:
            if not self._query.status["isTriggerActive"]:
                break
            time.sleep(0.01)
        report(self._name, self._query)
        self._query.stop()
