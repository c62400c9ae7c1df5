"""What a query did last, said once in the log and counted: rows, time, and how far it is behind."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.jobs.pipeline.declaration import Pipeline
from penstock.jobs.telemetry import COMPLETE, ended_jobs, reason_of
from penstock.spark.jobs.history import Told

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("penstock.spark")
_last: dict[str, int] = {}
# The last event of each topic that was looked at for jobs that ended.
_counted: dict[str, int] = {}
# What Spark calls a batch from its beginning to its end, among the phases of it.
_WHOLE = "triggerExecution"


def report(name: str, query: StreamingQuery) -> bool:
    """Log the batches that ended since; whether there were any."""
    news = False
    for progress in query.recentProgress:
        batch = int(progress["batchId"])
        known = _last.get(str(progress["runId"]), -1)
        if batch <= known:
            continue
        _last[str(progress["runId"])] = batch
        rows = sum(int(source["numInputRows"] or 0) for source in progress["sources"])
        if rows:
            news = True
            late = behind(progress)
            seconds = float(progress["durationMs"].get(_WHOLE, 0)) / 1000
            _log.info(
                "%s: %d messages in %.2f s, %d behind",
                name,
                rows,
                seconds,
                late,
                extra={"query": name, "batch": batch, "rows": rows, "seconds": seconds},
            )
            _count(name, rows, late, progress["durationMs"])
    return news


def behind(progress: Any) -> int:
    """Messages that are there and not yet looked at, over all topics of a query."""
    total = 0
    for source in progress["sources"]:
        end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        total += sum(max(0, latest[topic] - end.get(topic, 0)) for topic in latest)
    return total


def _offsets(value: Any) -> dict[str, int]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, dict):
        return {}
    return {str(topic): int(at) for topic, at in value.items() if str(at).isdigit()}


class _Metrics:
    """Counters of this process."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        name = "penstock_pipeline"
        self.messages = Counter(f"{name}_messages", "Messages that a query took in", ["query"])
        self.batch = Histogram(f"{name}_batch_seconds", "What a batch took", ["query"])
        self.phases = Counter(
            f"{name}_phase_seconds", "What the phases of batches took", ["query", "phase"]
        )
        self.behind = Gauge(f"{name}_behind", "Messages not yet looked at", ["query"])
        self.running = Gauge(f"{name}_running", "1 while a query runs, else 0", ["query"])
        self.starts = Counter(f"{name}_starts", "How often a query was started", ["query"])


@cache
def _metrics() -> _Metrics | None:
    """None where prometheus-client is not installed."""
    try:
        return _Metrics()
    except ImportError:
        return None


def count_ended(pipeline: Pipeline, topic: str, events: Sequence[Told]) -> None:
    """Jobs that ended, as workers count them: tasks run where nobody could ask, so events are
    counted where the driver reads them; those of a batch that is run again, once."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return
    counter = ended_jobs(REGISTRY)
    by = {stage.consumes: stage.name for stage in pipeline.stages}
    for sequence, _, event in events:
        if sequence <= _counted.get(topic, -1):
            continue
        _counted[topic] = sequence
        if pipeline.is_end(event.stage) and event.previous is not None:
            reason = reason_of(event) or COMPLETE
            counter.labels(by[event.previous], event.media_type.value, reason).inc()


def say_running(name: str, *, running: bool) -> None:
    """A query was started, or has failed: what else is told of it is as old as that."""
    metrics = _metrics()
    if metrics is not None:
        metrics.running.labels(name).set(running)
        if running:
            metrics.starts.labels(name).inc()


def _count(name: str, rows: int, late: int, milliseconds: Mapping[str, Any]) -> None:
    metrics = _metrics()
    if metrics is None:
        return
    metrics.messages.labels(name).inc(rows)
    metrics.behind.labels(name).set(late)
    for phase, took in milliseconds.items():
        if phase == _WHOLE:
            metrics.batch.labels(name).observe(float(took) / 1000)
        else:
            metrics.phases.labels(name, phase).inc(float(took) / 1000)
