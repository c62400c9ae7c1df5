"""Where tasks find the jobs. Light to import: what works there is not needed to plan a task."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.jobs.runner import Runner


@dataclass(frozen=True)
class Workplace:
    """What a task needs to find the jobs; it travels with the task.

    `settings`: as JSON. `pipeline`: where it is found, as `module:NAME`. `identity`: of the
    database that the driver uses.
    """

    settings: bytes = field(repr=False)
    pipeline: str
    identity: str

    def runner(self) -> Runner:
        """The one of this process, made when it is first wanted."""
        with _lock:
            if self not in _runners:
                _runners[self] = self._made()
            return _runners[self]

    def leave(self) -> None:
        """End the runner of this process, if there is one."""
        with _lock:
            runner = _runners.pop(self, None)
        if runner is not None:
            runner.close()

    def _made(self) -> Runner:
        from penstock.jobs.pipeline.declaration import pipeline_of
        from penstock.jobs.settings import settings_from_json
        from penstock.spark.jobs.runner import Runner

        settings = settings_from_json(self.settings, pipeline_of(self.pipeline))
        return Runner(settings, self.identity)


_runners: dict[Workplace, Runner] = {}
_lock = threading.Lock()
