"""What a query did last, said once in the log and counted: rows, time, and how far it is behind."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.telemetry import COMPLETE, ended_jobs, reason_of
from penstock.spark.behind import offsets_behind, together
from penstock.spark.jobs.history import Told
from penstock.spark.sink_counts import show_sinks

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("penstock.spark")
_last: dict[str, int] = {}
# The last event of each topic that was looked at for jobs that ended.
_counted: dict[str, int] = {}
_reached: dict[str, dict[str, Any]] = {}
# What Spark calls a batch from its beginning to its end, among the phases of it.
_WHOLE = "triggerExecution"


def report(name: str, query: StreamingQuery) -> bool:
    """Log the batches that ended since; whether there were any."""
    news = False
    for progress in _since(query):
        news = True
        _last[str(progress["runId"])] = batch = int(progress["batchId"])
        ends = (source["endOffset"] for source in progress["sources"])
        _reached.setdefault(name, {}).update(together(*ends))
        rows = sum(int(source["numInputRows"] or 0) for source in progress["sources"])
        if rows:
            seconds = float(progress["durationMs"].get(_WHOLE, 0)) / 1000
            behind = offsets_behind(progress)
            _log.info(
                "%s: %d messages in %.2f s%s",
                *(name, rows, seconds, f", {sum(behind.values())} behind" if behind else ""),
                extra={"query": name, "batch": batch, "rows": rows, "seconds": seconds},
            )
            _count(name, rows, progress["durationMs"])
    return news


def _since(query: StreamingQuery) -> Sequence[Any]:
    """What ended since the last look. To have one of a hundred that Spark keeps takes dozens of
    calls to the JVM, so the last alone is asked for where that will do."""
    last = query.lastProgress
    if last is None:
        return ()
    known = _last.get(str(last["runId"]), -1)
    batch = int(last["batchId"])
    if batch <= known + 1:
        return (last,) if batch > known else ()
    return [one for one in query.recentProgress if int(one["batchId"]) > known]


def reached(name: str) -> Mapping[str, Any]:
    """The offsets that a query has come to, as far as it has told in this process."""
    return dict(_reached.get(name, {}))


class _Metrics:
    """Counters of this process."""

    def __init__(self) -> None:
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram

        name = "penstock_pipeline"
        self.messages = Counter(f"{name}_messages", "Messages that a query took in", ["query"])
        self.repeated = Counter(
            f"{name}_repeated", "Of those, events that had been read before", ["query"]
        )
        self.batch = Histogram(f"{name}_batch_seconds", "What a batch took", ["query"])
        self.phases = Counter(
            f"{name}_phase_seconds", "What the phases of batches took", ["query", "phase"]
        )
        self.behind = Gauge(f"{name}_behind", "Messages not yet looked at", ["query"])
        self.late = Gauge(f"{name}_behind_seconds", "Age of the oldest of those", ["query"])
        self.spool = Gauge(f"{name}_spool_bytes", "What is spooled and not yet done", ["query"])
        self.running = Gauge(f"{name}_running", "1 while a query runs, else 0", ["query"])
        self.starts = Counter(f"{name}_starts", "How often a query was started", ["query"])
        self.failures = Counter(f"{name}_failures", "How often a query failed", ["query"])
        # A pipeline has no sinks of its own; those that are run beside it have.
        show_sinks(REGISTRY)


@cache
def _metrics() -> _Metrics | None:
    """None where prometheus-client is not installed."""
    try:
        return _Metrics()
    except ImportError:
        return None


def count_ended(pipeline: Pipeline, topic: str, events: Sequence[Told]) -> int:
    """Jobs that ended, as workers count them: tasks run where nobody could ask, so events are
    counted where the driver reads them; those of a batch that is run again, once. Returns how many
    events came again."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return 0
    again = 0
    counter = ended_jobs(REGISTRY)
    by = {stage.consumes: stage.name for stage in pipeline.stages}
    for sequence, _, event in events:
        if sequence <= _counted.get(topic, -1):
            again += 1
            continue
        _counted[topic] = sequence
        if pipeline.is_end(event.stage) and event.previous is not None:
            reason = reason_of(event) or COMPLETE
            counter.labels(by[event.previous], event.media_type.value, reason).inc()
    return again


def is_counted() -> bool:
    return _metrics() is not None


def say_running(name: str, *, running: bool) -> None:
    """A query was started, or has failed."""
    metrics = _metrics()
    if metrics is not None:
        # All are there from the first start on: what is not there yet cannot be seen to grow.
        for counter in (metrics.messages, metrics.batch, metrics.starts, metrics.failures):
            counter.labels(name)
        metrics.running.labels(name).set(running)
        (metrics.starts if running else metrics.failures).labels(name).inc()


def say_behind(name: str, messages: float, seconds: float) -> None:
    """How far a query is behind; not-a-number where nobody can tell."""
    metrics = _metrics()
    if metrics is not None:
        metrics.behind.labels(name).set(messages)
        metrics.late.labels(name).set(seconds)


def say_spool(name: str, size: int) -> None:
    metrics = _metrics()
    if metrics is not None:
        metrics.spool.labels(name).set(size)


def say_repeated(name: str, events: int) -> None:
    metrics = _metrics()
    if metrics is not None:
        metrics.repeated.labels(name).inc(events)


def _count(name: str, rows: int, milliseconds: Mapping[str, Any]) -> None:
    metrics = _metrics()
    if metrics is None:
        return
    metrics.messages.labels(name).inc(rows)
    for phase, took in milliseconds.items():
        if phase == _WHOLE:
            metrics.batch.labels(name).observe(float(took) / 1000)
        else:
            metrics.phases.labels(name, phase).inc(float(took) / 1000)
