"""Bars that follow jobs to their end, through restarts of the API."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from penstock.errors import NotFoundError, UnavailableError
from penstock.retrying import Failures, Persistence, always
from penstock.rules.backoff import Backoff

if TYPE_CHECKING:
    from penstock.cli.jobs.api import Api

_ENDS = {"Failed": "red", "Cancelled": "yellow"}
# A stream that lasted so long was a good one, though nothing may have happened in it.
_STEADY = 5.0
_WIDEST_NAME = 32
_PAUSES = Backoff(initial=0.2, maximum=5.0)


def stage_text(job: dict[str, Any], stages: Sequence[str]) -> str:
    stage = job["stage"]
    colour = "green" if stage == stages[-1] else _ENDS.get(stage, "blue")
    reason = f" {job['reason']}" if job.get("reason") else ""
    doubt = " [yellow]doubtful[/]" if job.get("doubtful") else ""
    return f"[{colour}]{stage}[/]{reason}{_cut(job)}{doubt}"


def _cut(job: dict[str, Any]) -> str:
    """That the text is not all there was, and how much it is."""
    if not job.get("truncated"):
        return ""
    letters = f"{job.get('characters', 0):,} letters"
    pages = job.get("pages") or 1
    return f" [yellow]cut after {f'{pages:,} pages' if pages > 1 else letters}[/]"


def follow(
    client: Api,
    wanted: Collection[str],
    out: Console,
    patience: float,
    names: Mapping[str, str] | None = None,
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> Following:
    """Until every wanted job has ended. `names`: what to call jobs, by their ids. `tell`: called
    with each job that is news.

    A stream that breaks is taken up again. `UnavailableError` once that has led nowhere for
    `patience` seconds, or at once when the API was never reached.
    """
    persistence = Persistence(backoff=_PAUSES, within=patience, worth_it=always)
    failures = Failures(persistence)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.fields[name]} {task.fields[media]:<8}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=out,
    ) as progress:
        following = Following(wanted, progress, client.stages(), names or {}, tell)
        while True:
            began, changes = time.monotonic(), following.changes
            failure = UnavailableError(
                "The API's stream of events keeps ending before the jobs do; they go on without "
                "you: see `penstock jobs status`"
            )
            connected = False
            try:
                for change in client.events():
                    connected = True
                    if change is not None:
                        following.show(change)
                    else:
                        for job_id in wanted:
                            following.show(client.job(job_id))
                        if not wanted:
                            following.look_at_those_under_way(client)
                    if wanted and all(job_id in following.ended for job_id in wanted):
                        return following
            except UnavailableError as error:
                failure = error
                if not client.reached:
                    raise
            now = time.monotonic()
            if following.changes > changes or (connected and now - began > _STEADY):
                failures.clear()
            pause = failures.pause_after(failure, now, lambda: 1.0)
            if pause is None:
                raise failure
            time.sleep(pause)


class Following:
    """`jobs`: what was last heard of each."""

    def __init__(
        self,
        wanted: Collection[str],
        progress: Progress,
        stages: Sequence[str],
        names: Mapping[str, str],
        tell: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._wanted = wanted
        self._progress = progress
        self._stages = stages
        self._names = names
        self._tell = tell
        self._width = min(max(map(len, names.values()), default=0), _WIDEST_NAME)
        self.jobs: dict[str, dict[str, Any]] = {}
        self._bars: dict[str, TaskID] = {}
        self._seen: dict[str, str] = {}
        self.changes = 0
        self.ended: dict[str, str] = {}

    @property
    def last_stage(self) -> str:
        """Where a job is when it is complete."""
        return self._stages[-1]

    @property
    def all_complete(self) -> bool:
        return all(self.ended.get(job_id) == self._stages[-1] for job_id in self._wanted)

    def look_at_those_under_way(self, client: Api) -> None:
        """Of those that were heard of; one that is gone was not asked for."""
        for job_id in [job_id for job_id in self.jobs if job_id not in self.ended]:
            with suppress(NotFoundError):
                self.show(client.job(job_id))

    def show(self, job: dict[str, Any]) -> None:
        job_id, stage = job["jobId"], job["stage"]
        if self._wanted and job_id not in self._wanted:
            return
        if job_id not in self._bars:
            self._bars[job_id] = self._progress.add_task(
                "", total=len(self._stages), name=self._name(job), media=job["mediaType"]
            )
        if self._tell is not None and self.jobs.get(job_id) != job:
            self._tell(job)
        self.jobs[job_id] = job
        bar, step = self._bars[job_id], self._step(stage)
        told = stage_text(job, self._stages)
        self._progress.update(bar, completed=step, description=told, name=self._name(job))
        if self._seen.get(job_id) != stage:
            self._seen[job_id] = stage
            self.changes += 1
        if step == len(self._stages):
            self.ended[job_id] = stage
            self._progress.stop_task(bar)
        else:
            self.ended.pop(job_id, None)

    def _name(self, job: dict[str, Any]) -> str:
        job_id = job["jobId"]
        name = self._names.get(job_id) or str(job.get("name") or job_id[4:16])
        if len(name) > _WIDEST_NAME:  # Both ends tell: the beginning is the name, the end the kind.
            name = f"{name[: _WIDEST_NAME - 11]}…{name[-10:]}"
        return f"{name:<{self._width}}"

    def _step(self, stage: str) -> int:
        if stage in _ENDS:
            return len(self._stages)
        return self._stages.index(stage) + 1 if stage in self._stages else 1
