"""What waits in a job system, as Prometheus metrics. Asked for when it is scraped, and kept by
nobody: several APIs may run in a process, as in tests."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.jobs.system import Ingestion
from penstock.retrying import Outage

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("penstock.web")
_HELP = {
    "outbox_pending": "Messages that are committed and not yet published.",
    "outbox_oldest_age_seconds": "Age of the oldest of them.",
    "outbox_dead": "Messages that were given up.",
    "read_model_events_behind": "Events that the read model has not taken in.",
    "read_model_seconds_behind": "Seconds since it had taken in all there were.",
}


class Gauges:
    """Values that cannot be told, because a part is away or does not count, are NaN: a scrape tells
    what it can."""

    def __init__(self, ingestion: Ingestion) -> None:
        self._ingestion = ingestion
        self._outage = Outage(_log, "What waits cannot be measured")

    async def text(self) -> str:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest

        registry = CollectorRegistry()
        measured = await self._measured()
        for name, told in _HELP.items():
            gauge = Gauge(f"penstock_jobs_{name}", told, registry=registry)
            value = measured.get(name)
            gauge.set(math.nan if value is None else value)
        return generate_latest(registry).decode()

    async def _measured(self) -> Mapping[str, float | None]:
        found: dict[str, float | None] = {}
        try:
            outbox = await self._ingestion.outbox.status()
            found["outbox_pending"] = outbox.pending
            found["outbox_oldest_age_seconds"] = outbox.oldest_age
            found["outbox_dead"] = outbox.dead
            lag = await self._ingestion.projection.lag()
            found["read_model_events_behind"] = lag.events
            found["read_model_seconds_behind"] = lag.seconds
        except PenstockError as error:
            self._outage.met(error)
        else:
            self._outage.over()
        return found
