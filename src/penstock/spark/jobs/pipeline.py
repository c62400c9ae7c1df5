"""The stages of a pipeline as Structured Streaming queries, each with a checkpoint of its own.

    job-processing ─▶ each stage   ─▶ store and outbox
    job-events     ─▶ projection   ─▶ read model, history
    outbox         ─▶ relay        ─▶ job-processing, job-events

The stages are those that the asyncio worker runs, and the relay is the same, in a thread of the
driver. A batch that is run again finds in the store what was done.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.config import check_zone
from penstock.connect import broker_kind, check_shared, hold_server, open_ranges, scheme_of
from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.jobs.model.fields import JobId
from penstock.jobs.pipeline.declaration import PROJECTION, pipeline_of
from penstock.jobs.pipeline.media import MEDIA_REFERENCE
from penstock.jobs.settings import JobSettings
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.jobs.checkpoints import holding_checkpoints
from penstock.spark.jobs.driver_relay import DriverRelay
from penstock.spark.jobs.event_source import EventSource
from penstock.spark.jobs.executors import Executors
from penstock.spark.jobs.kept_query import (
    KeptQuery,
    end_all,
    end_between_batches,
    look_at_all,
)
from penstock.spark.jobs.lag import Lags, SpoolLags, TopicLags, Watching
from penstock.spark.jobs.places import absolute, absolute_place, check_reach, prepare_database
from penstock.spark.jobs.progress import report
from penstock.spark.jobs.projection import Project
from penstock.spark.jobs.queues import make_queues
from penstock.spark.jobs.stage_source import StageTask, stage_source
from penstock.spark.jobs.workplace import Workplace
from penstock.spark.options import SourceOptions
from penstock.spark.session.starting import activate, renew_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LOOK = 0.1
_DAY = 86_400.0
# Queries are looked at all the time; to start one again takes seconds where all is well.
_HANGS = 60.0
# Seconds that the source of a query is given before the next one is started.
_STARTING = 20.0


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """`checkpoints`: a folder that the driver and all executors see; each query has its own in it.
    `history`: where events go as a Delta table, if anywhere. `pipeline`: where the tasks find it,
    as `module:NAME`. `stages`: the names of those to run, and `projection`; all unless given.
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
        for name in ("checkpoints", "history"):
            if getattr(self, name) == "":
                raise InvalidArgumentError(f"{name} must name a folder or an address, not nothing")
        for name in ("batch", "partition"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be at least 1")
        for name in ("trigger", "drain"):
            if not 0 <= getattr(self, name) <= _DAY:
                raise InvalidArgumentError(
                    f"{name} must be seconds from 0 to {_DAY:g}, not {getattr(self, name):g}"
                )


def queries_of(settings: JobSettings, options: PipelineOptions) -> tuple[str, ...]:
    """The names of the queries to run; an error when they cannot be run like that."""
    check_shared(settings.url)
    if broker_kind(settings.url).ranges is None:
        _check_queues(settings, options)
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
    if options.history is not None and PROJECTION not in chosen:
        raise InvalidArgumentError(
            f"A history is kept by the {PROJECTION}, which is not among the stages "
            f"{', '.join(chosen)}; add it to them, or leave the history out"
        )
    # As they follow each other, whoever asks for them: one works on what the one before says.
    return tuple(name for name in every if name in chosen)


def _check_queues(settings: JobSettings, options: PipelineOptions) -> None:
    scheme = scheme_of(settings.url)
    if "://" in options.checkpoints:
        raise InvalidArgumentError(
            f"What is behind {scheme}:// keeps no log and is read through a spool beside the "
            "checkpoints; give a folder for them that the driver and all executors see"
        )
    if options.history is not None:
        raise InvalidArgumentError(
            f"A history is kept by sequences of a log, and what is behind {scheme}:// keeps none; "
            "leave it out, or use nats:// or local://"
        )


@dataclass(frozen=True, kw_only=True)
class Part:
    """What to work through of all there is: messages published at `since` or later, and those of
    certain `jobs`; all of them where nothing is said."""

    since: datetime | None = None
    jobs: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_zone("since", self.since)
        for job_id in self.jobs:
            try:
                msgspec.convert(job_id, JobId)
            except msgspec.ValidationError:
                raise InvalidArgumentError(f"{job_id!r} is no job id") from None

    @property
    def is_all(self) -> bool:
        return self.since is None and not self.jobs

    def options(self, where: str = "") -> dict[str, str]:
        """For the source; `where` is the filter that it has anyway."""
        since = {} if self.since is None else {"startingTimestamp": self.since.isoformat()}
        if self.jobs:
            ours = " OR ".join(f'attributes.jobId = "{job_id}"' for job_id in self.jobs)
            where = f"({where}) AND ({ours})" if where else ours
        return since | ({"filter": where} if where else {})


ALL = Part()


class SparkPipeline:
    """The queries of a pipeline on one session."""

    def __init__(
        self, spark: SparkSession, settings: JobSettings, options: PipelineOptions
    ) -> None:
        self._queries = queries_of(settings, options)
        check_reach(settings, _master(spark))
        self._spark = spark
        self._settings = absolute(settings)
        self._options = replace(
            options,
            checkpoints=absolute_place(options.checkpoints),
            history=None if options.history is None else absolute_place(options.history),
        )
        self._has_log = broker_kind(settings.url).ranges is not None
        self._workplace: Workplace | None = None
        self._stopping = threading.Event()
        self._executors = Executors(spark)
        self._kept: list[KeptQuery] = []
        self._looked_at: float | None = None

    def lacks(self) -> str | None:
        """What keeps the queries that `run` keeps running from their work, if anything does. For
        any thread."""
        if self._stopping.is_set():
            return "it is stopping"
        told = (*(query.lacks for query in self._kept), self._executors.lacks)
        if troubles := [one for one in told if one is not None]:
            return "; ".join(troubles)
        looked_at = self._looked_at
        if looked_at is None:
            return "its queries are starting"
        unseen = time.monotonic() - looked_at
        return f"Spark has not answered for {unseen:.0f} s" if unseen > _HANGS else None

    def stop(self) -> None:
        """Let the batches that run come to their end, then end `run`. Safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Run until stopped. A query that fails is started again from its checkpoint, each time
        after a longer pause."""
        activate(self._spark)
        with self._holding(), self._prepared() as stack:
            if set(self._queries) != {PROJECTION}:
                stack.enter_context(DriverRelay(self._settings))
            stack.enter_context(Watching(self._lags()))
            kept = self._kept
            try:
                for name in self._queries:
                    if not self._stopping.is_set():
                        kept.append(KeptQuery(name, partial(self.start, name)))
                        self._let_start(kept[-1])
                while not self._stopping.is_set():
                    self._looked_at = time.monotonic()
                    look_at_all(kept)
                    self._executors.look()
                    self._stopping.wait(_LOOK)
            finally:
                end_all(kept, self._options.drain)

    def _lags(self) -> Lags:
        settings, names = self._settings, self._queries
        if self._has_log:
            topics = {
                name: (settings.topics.events,) if name == PROJECTION else settings.topics.work
                for name in names
            }
            return TopicLags(open_ranges(settings.url), topics, self._options.checkpoints)
        return SpoolLags({name: [*map(self._spool, self._queues(name))] for name in names})

    def _let_start(self, query: KeptQuery) -> None:
        """Wait until the source of a query is there: a busy machine that starts several at a time
        has none ready within the 10 s that Spark gives each. First batches run side by side."""
        until = time.monotonic() + _STARTING
        while not self._stopping.is_set() and time.monotonic() < until and query.is_starting:
            self._stopping.wait(_LOOK)

    def _holding(self) -> AbstractContextManager[None]:
        """What is at a Connect server's is not to be seen from here."""
        if not hasattr(self._spark, "_jsparkSession"):
            return nullcontext()
        return holding_checkpoints(self._options.checkpoints, self._queries)

    @contextmanager
    def _prepared(self) -> Iterator[ExitStack]:
        with ExitStack() as stack:
            # One server for all that follows, where it is our own: it ends with its last user.
            hold = hold_server(self._settings.url)
            if hold is not None:
                stack.callback(hold.close)
            identity = asyncio.run(prepare_database(self._settings))
            # Whoever is first makes the topics; and queues hold only what is published once they
            # are there.
            events = not self._has_log and PROJECTION in self._queries
            asyncio.run(make_queues(self._settings, events=events))
            workplace = Workplace(self._settings.to_json(), self._options.pipeline, identity)
            self._workplace = workplace
            stack.callback(workplace.leave)
            yield stack

    def backfill(self, part: Part = ALL) -> bool:
        """Work through all there is now, or a part of it, stage by stage, and return whether that
        is done: False when it was stopped before. What is to be tried again later stays in the
        outbox, for whoever runs next.

        A part is read beside what the queries have read: their checkpoints stay where they are, and
        so does the history, which has no gaps.
        """
        if not part.is_all and not self._has_log:
            raise InvalidArgumentError(
                f"What is behind {scheme_of(self._settings.url)}:// keeps no log to read a part of;"
                " leave out since and jobs"
            )
        activate(self._spark)
        with self._holding() if part.is_all else nullcontext(), self._prepared() as stack:
            relay = stack.enter_context(DriverRelay(self._settings))
            for name in self._queries:
                if self._stopping.is_set():
                    return False
                query = self.start(name, once=part)
                while not query.awaitTermination(1):
                    report(name, query)
                    self._executors.look()
                    if self._stopping.is_set():
                        end_between_batches(name, query, self._options.drain)
                        return False
                report(name, query)
                # What one stage says is what the next works through.
                relay.wait_until_sent(self._options.drain)
        return True

    def start(self, name: str, *, once: Part | None = None) -> StreamingQuery:
        """Start the query of a stage, from where its checkpoint says; `once`: to end when that part
        is done."""
        part = once or ALL
        writer = self._projection(part) if name == PROJECTION else self._stage(name, part)
        writer = writer.queryName(name)
        if part.is_all:
            folder = self._options.checkpoints.rstrip("/")
            writer = writer.option("checkpointLocation", f"{folder}/{name}")
        # A part has none that anybody would go on with: Spark makes one, and deletes it.
        if once:
            return writer.trigger(availableNow=True).start()
        milliseconds = max(0, round(self._options.trigger * 1000))
        return writer.trigger(processingTime=f"{milliseconds} milliseconds").start()

    def _stage(self, name: str, part: Part) -> DataStreamWriter:
        settings = self._settings.stages.of(self._settings.pipeline.stage(name))
        source = stage_source(StageTask(self._placed(), name))
        renew_source(self._spark, source)
        if self._has_log:
            reading = self._log_options(
                topics=",".join(self._settings.topics.work),
                maxRecordsPerPartition=str(self._options.partition),
                **part.options(settings.filter),
            )
            jobs = self._spark.readStream.format(source.name()).options(**reading).load()
        else:
            queues = (self._read_queue(source, queue) for queue in self._queues(name))
            jobs = reduce(lambda one, other: one.union(other), queues)
        return jobs.writeStream.format("noop")

    def _projection(self, part: Part) -> DataStreamWriter:
        topic = self._settings.topics.events
        log: SourceOptions | None = None
        if self._has_log:
            renew_source(self._spark, EventSource)
            reading = self._log_options(topics=topic, **part.options())
            events = self._spark.readStream.format(EventSource.name()).options(**reading).load()
            log = SourceOptions.of(reading)
        else:
            renew_source(self._spark, PenstockDataSource)
            [queue] = self._queues(PROJECTION)
            events = self._read_queue(PenstockDataSource, queue)
        history = self._options.history if part.is_all else None
        project = Project(self._placed(), topic, history, log)
        return events.writeStream.foreachBatch(project)

    def _placed(self) -> Workplace:
        if self._workplace is None:
            raise FailedPreconditionError("A query of a pipeline is started by run() or backfill()")
        return self._workplace

    def _log_options(self, **more: str) -> dict[str, str]:
        most = str(self._options.batch)
        # Whatever is read again finds that it was done: nobody has to say that it may be.
        begin = {"maxOffsetsPerTrigger": most, "whenRecreated": "begin"}
        return {"url": self._settings.url, **begin, **more}

    def _queues(self, name: str) -> Sequence[str]:
        """The subscriptions that a query reads where there is no log."""
        if name == PROJECTION:
            return (self._settings.api.spark_subscription,)
        stage = self._settings.stages.of(self._settings.pipeline.stage(name))
        return tuple(self._settings.subscriptions_of(stage).values())

    def _spool(self, subscription: str) -> Path:
        return Path(self._options.checkpoints, "spools", subscription)

    def _read_queue(self, source: type[DataSource], subscription: str) -> DataFrame:
        return (
            self._spark.readStream.format(source.name())
            .option("url", self._settings.url)
            .option("subscription", subscription)
            .option("spoolLocation", str(self._spool(subscription)))
            .option("maxOffsetsPerTrigger", str(self._options.batch))
            .option("segmentSeconds", str(max(0.1, min(1.0, self._options.trigger))))
            .load()
        )


def _master(spark: SparkSession) -> str:
    return spark.conf.get("spark.master", None) or "a Connect server"
