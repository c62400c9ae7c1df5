"""What sinks did, for whoever asks the driver.

Spark has each batch committed in a process of its own, which ends without having told anybody. So
it adds what it did to the sums in a file, which `session` names to all that its JVM starts.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_SH, flock
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.spark.session.java import scratch

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

PLACE = "PENSTOCK_SINK_COUNTS"


class SinkCount(msgspec.Struct, frozen=True):
    """`rows`: those of committed batches. `duplicates`: of these, what the topic had already when a
    task ran for the first time."""

    rows: int = 0
    duplicates: int = 0


_decoder = msgspec.json.Decoder(dict[str, SinkCount])


def sink_counts() -> Mapping[str, SinkCount]:
    """What sinks have done, by their option `topic`, since this process called `session`."""
    try:
        with counts_file().open("rb") as file:
            flock(file, LOCK_SH)
            return _read(file.read())
    except (FileNotFoundError, msgspec.DecodeError):
        # Whoever tidies up temporary folders, or fills them so that a part of it was written, does
        # not take the other metrics away.
        return {}


def count_sunk(topic: str, rows: int, duplicates: int) -> None:
    """Where a batch is committed. A session of somebody else counts nothing."""
    place = os.environ.get(PLACE)
    if place is None:
        return
    # Counting is not worth a batch: the driver that made the file may have ended, or the disk is
    # full and a part of the file was written.
    with suppress(OSError, msgspec.DecodeError), Path(place).open("r+b") as file:
        flock(file, LOCK_EX)
        sums = _read(file.read())
        before = sums.get(topic, SinkCount())
        sums[topic] = SinkCount(before.rows + rows, before.duplicates + duplicates)
        file.seek(0)
        # Sums only grow, and so does what is written.
        file.write(msgspec.json.encode(sums))


def _read(data: bytes) -> dict[str, SinkCount]:
    return _decoder.decode(data) if data else {}


@cache
def counts_file() -> Path:
    """The one of this process, empty at first; gone when it ends."""
    number, name = tempfile.mkstemp(prefix="sinks-", suffix=".json", dir=scratch())
    os.close(number)
    file = Path(name)
    atexit.register(file.unlink, missing_ok=True)
    return file


@cache
def show_sinks(registry: CollectorRegistry) -> None:
    """Show the counts of sinks among the metrics of a registry; again it changes nothing."""
    registry.register(_Collector())


class _Collector:
    def collect(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily

        rows = CounterMetricFamily("penstock_sink_rows", "Rows of batches", labels=["topic"])
        duplicates = CounterMetricFamily(
            "penstock_sink_duplicates", "Of those, what the topic had already", labels=["topic"]
        )
        for topic, count in sink_counts().items():
            rows.add_metric([topic], count.rows)
            duplicates.add_metric([topic], count.duplicates)
        yield rows
        yield duplicates
