"""Whether a cluster lets tasks run at all.

A standalone master keeps an application waiting without a word when others have its cores, when no
worker has the memory it asks for, and when its last worker is gone.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("penstock.spark")
_EVERY = 5.0
# Seconds: a worker needs some to start an executor where all is well.
_PATIENCE = 15.0


class Executors:
    """Those of a session; `look` now and then. Tells once when tasks have had nowhere to run for
    a while, and once when they have again."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = _context_of(spark)
        self._next = 0.0
        self._since: float | None = None
        self.lacks: str | None = None
        """What is wrong, for anybody."""

    def look(self) -> None:
        now = time.monotonic()
        if self._context is None or now < self._next:
            return
        self._next = now + _EVERY
        if not _is_starved(self._context):
            self._end()
        elif self._since is None:
            self._since = now
        elif self.lacks is None and now - self._since >= _PATIENCE:
            self.lacks = "the cluster gives it no executor"
            _log.warning(
                "Tasks wait, and the cluster has given this application no executor for %.0f s. "
                "It has one as soon as a worker has the cores and the memory free that it asks for:"
                " start a worker, end another application or let it take less (spark.cores.max), "
                "or ask for less (spark.executor.cores, spark.executor.memory)",
                now - self._since,
            )

    def _end(self) -> None:
        if self.lacks is not None:
            _log.info("The cluster has given this application an executor, and tasks run")
        self._since = self.lacks = None


def _context_of(spark: SparkSession) -> Any:
    """None where there is nothing to ask: the driver of `local` runs tasks itself, and a Connect
    server is another's."""
    if not hasattr(spark, "_jsparkSession"):
        return None
    context = spark.sparkContext
    master = str(context.master)
    is_alone = master.startswith("local") and not master.startswith("local-")
    return None if is_alone else context


def _is_starved(context: Any) -> bool:
    """Without tasks no executors are needed, and where they come and go as needed there are none.
    The driver counts among those that keep blocks."""
    if not context.statusTracker().getActiveStageIds():
        return False
    return bool(context._jsc.sc().getExecutorMemoryStatus().size() <= 1)
