"""Bars that follow jobs to their end, through restarts of the API."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from penstock.cli.api import Api
from penstock.errors import UnavailableError

_STEPS = {"Queued": 1, "MetadataReady": 2, "TranscriptComplete": 3, "Failed": 3, "Cancelled": 3}
_COLOURS = {"TranscriptComplete": "green", "Failed": "red", "Cancelled": "yellow"}
# A stream that lasted so long was a good one, though nothing may have happened in it.
_STEADY = 5.0
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0


def stage_text(job: dict[str, Any]) -> str:
    colour = _COLOURS.get(job["stage"], "blue")
    reason = f" {job['reason']}" if job.get("reason") else ""
    return f"[{colour}]{job['stage']}[/]{reason}"


def follow(client: Api, wanted: set[str], out: Console, patience: float) -> bool:
    """Until every wanted job has ended; True when all of them completed.

    A stream that breaks is taken up again. `UnavailableError` once that has led nowhere for
    `patience` seconds, or at once when the API was never reached.
    """
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.fields[short]} {task.fields[media]:<8}"),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=out,
    ) as progress:
        following = _Following(wanted, progress)
        lost = time.monotonic()
        pause = _FIRST_PAUSE
        while True:
            began, changes, connected = time.monotonic(), following.changes, False
            failure: UnavailableError | None = None
            try:
                for change in client.events():
                    connected = True
                    if change is not None:
                        following.show(change)
                    else:
                        for job_id in wanted:
                            following.show(client.job(job_id))
                    if wanted and wanted <= following.ended.keys():
                        return following.all_complete
            except UnavailableError as error:
                failure = error
                if not client.reached:
                    raise
            now = time.monotonic()
            if following.changes > changes or (connected and now - began > _STEADY):
                lost, pause = now, _FIRST_PAUSE
            if now - lost + pause > patience:
                raise failure or UnavailableError(
                    "The API's stream of events keeps ending before the jobs do; they go on "
                    "without you: see `penstock jobs status`"
                )
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


class _Following:
    def __init__(self, wanted: set[str], progress: Progress) -> None:
        self._wanted = wanted
        self._progress = progress
        self._bars: dict[str, TaskID] = {}
        self._stages: dict[str, str] = {}
        self.changes = 0
        self.ended: dict[str, str] = {}

    @property
    def all_complete(self) -> bool:
        return all(self.ended.get(job_id) == "TranscriptComplete" for job_id in self._wanted)

    def show(self, job: dict[str, Any]) -> None:
        job_id, stage = job["jobId"], job["stage"]
        if self._wanted and job_id not in self._wanted:
            return
        if job_id not in self._bars:
            self._bars[job_id] = self._progress.add_task(
                "", total=3, short=job_id[4:16], media=job["mediaType"]
            )
        bar, step = self._bars[job_id], _STEPS.get(stage, 1)
        self._progress.update(bar, completed=step, description=stage_text(job))
        if self._stages.get(job_id) != stage:
            self._stages[job_id] = stage
            self.changes += 1
        if step == 3:
            self.ended[job_id] = stage
            self._progress.stop_task(bar)
        else:
            self.ended.pop(job_id, None)
