"""What a query did last, said once in the log and counted: rows, time, and how far it is behind."""

from __future__ import annotations

import json
import logging
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("penstock.spark")
_last: dict[str, int] = {}


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
            seconds = float(progress["durationMs"].get("triggerExecution", 0)) / 1000
            _log.info(
                "%s: %d messages in %.2f s, %d behind",
                name,
                rows,
                seconds,
                late,
                extra={"query": name, "batch": batch, "rows": rows, "seconds": seconds},
            )
            _count(name, rows, seconds, late)
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


@cache
def _metrics() -> Any:
    """Counters of this process; None where prometheus-client is not installed."""
    try:
        from prometheus_client import Counter, Gauge, Histogram
    except ImportError:
        return None
    return (
        Counter("penstock_pipeline_messages", "Messages that a query took in", ["query"]),
        Histogram("penstock_pipeline_batch_seconds", "What a batch took", ["query"]),
        Gauge("penstock_pipeline_behind", "Messages not yet looked at", ["query"]),
    )


def _count(name: str, rows: int, seconds: float, late: int) -> None:
    metrics = _metrics()
    if metrics is not None:
        messages, took, left = metrics
        messages.labels(name).inc(rows)
        took.labels(name).observe(seconds)
        left.labels(name).set(late)
