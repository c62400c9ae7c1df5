"""The whole thing on this machine: broker, ingestion API with its page, and the Spark pipeline.

python examples/demo.py              sample media to transcripts, a table, and everything is gone
python examples/demo.py --forever    the same, then it stays up until Ctrl-C
"""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.table import Table

from penstock.errors import PenstockError
from penstock.jobs import MEDIA, JobStage, JobView, job_system, load_settings
from penstock.jobs.system import Ingestion, JobSystem
from penstock.web import create_app, serve

SAMPLES = Path(__file__).parent / "media"
PATIENCE = 170.0
# The best first: an error of Penstock, the cause of one of Java, any other, a warning.
_CAUSES = [
    re.compile(pattern)
    for pattern in (
        r"penstock: ",
        r"Caused by: ",
        r"([\w.]+\.)?\w*(Error|Exception)\b: ",
        r"\S+ \S+ (ERROR|WARNING) ",
    )
]
out = Console()


@dataclass
class Clock:
    """Where the time goes."""

    began: float = field(default_factory=time.monotonic)
    laps: list[tuple[str, float]] = field(default_factory=list)

    def lap(self, what: str) -> None:
        passed = sum(seconds for _, seconds in self.laps)
        self.laps.append((what, time.monotonic() - self.began - passed))


async def main(forever: bool) -> int:
    clock = Clock()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        settings = load_settings(
            environ={},
            url=f"local://{folder}/broker",
            database=f"sqlite:///{folder}/jobs.db",
            media={"root": str(folder / "media")},
            api={"views": "sql", "port": 0},
        )
        # It takes the longest to start, and needs nothing of the others until it has.
        spark = _Spark(folder, settings.url, settings.database)
        await spark.start()
        stack.push_async_callback(spark.end)
        system = await stack.enter_async_context(job_system(settings))
        ingestion = await stack.enter_async_context(system.ingesting())
        address = await stack.enter_async_context(_Api(system, ingestion))
        out.print(f"Broker and API are up; the page is at {address}/")
        clock.lap("broker, database and API")
        # Before what it works with.
        stack.push_async_callback(spark.end)
        jobs = await submit(address)
        clock.lap(f"asking for {len(jobs)} jobs, uploads included")
        views = await follow(ingestion, set(jobs), spark, clock, stop)
        if views is None:
            return 1 if not stop.is_set() else 0
        await show(system, jobs, views)
        if forever:
            out.print(f"Everything stays up: {address}/  Ctrl-C ends it.")
            await stop.wait()
    clock.lap("stopping Spark between two batches, and the rest")
    spent(clock)
    return 0 if all(v.stage is JobStage.TRANSCRIPT_COMPLETE for v in views.values()) else 1


class _Api:
    def __init__(self, system: JobSystem, ingestion: Ingestion) -> None:
        self._app = create_app(system, ingestion)
        self._stop = asyncio.Event()

    async def __aenter__(self) -> str:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.ensure_future(
            serve(self._app, "127.0.0.1", 0, on_ready=ready.set_result, stop=self._stop)
        )
        return await ready

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await self._serving


class _Spark:
    """`penstock pipeline run`, as anybody would start it."""

    def __init__(self, folder: Path, url: str, database: str) -> None:
        self.log = folder / "spark.log"
        self._command = [
            *(sys.executable, "-c", "from penstock.cli.main import main; main()"),
            *("pipeline", "run", "--master", "local[2]", "--url", url, "--database", database),
            *("--media", str(folder / "media"), "--checkpoints", str(folder / "checkpoints")),
            *("--history", str(folder / "history"), "--trigger", "0.2"),
        ]

    async def start(self) -> None:
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    @property
    def started(self) -> bool:
        return b"Running " in self.log.read_bytes()

    async def end(self) -> None:
        if not self.running:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), 60)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()


async def submit(address: str) -> dict[str, str]:
    """Upload every sample and ask for a job; returns their names by job id."""
    about = json.loads((SAMPLES / "manifest.json").read_text())
    jobs = {}
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=30) as client:
        for name, sample in about.items():
            path = SAMPLES / name
            upload = await client.post(
                "/uploads", params={"extension": path.suffix[1:]}, content=path.read_bytes()
            )
            upload.raise_for_status()
            body = {"mediaType": sample["kind"], "uploadId": upload.json()["uploadId"]}
            answer = await client.post("/jobs", json=body, headers={"Idempotency-Key": name})
            answer.raise_for_status()
            jobs[answer.json()["jobId"]] = name
    return jobs


async def follow(
    ingestion: Ingestion, wanted: set[str], spark: _Spark, clock: Clock, stop: asyncio.Event
) -> dict[str, JobView] | None:
    """A bar for each step until every job has ended; None when that is not to be."""
    views: dict[str, JobView] = {}
    until = time.monotonic() + PATIENCE
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<16}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        Elapsed(),
        console=out,
    ) as progress:
        starting = progress.add_task("Spark starts", total=1)
        metadata = progress.add_task("metadata", total=len(wanted), start=False)
        transcription = progress.add_task("transcription", total=len(wanted), start=False)
        while len(views) < len(wanted) or not all(MEDIA.is_end(v.stage) for v in views.values()):
            if stop.is_set():
                return None
            if not spark.running or time.monotonic() > until:
                why = "ended by itself" if not spark.running else f"took over {PATIENCE:.0f} s"
                out.print(f"[red]The pipeline {why}.[/]")
                out.print(cause_of(spark.log.read_text(errors="replace")), markup=False)
                kept = Path(tempfile.gettempdir()) / "penstock-demo-spark.log"
                kept.write_bytes(spark.log.read_bytes())
                out.print(f"All that it said is in {kept}", markup=False)
                return None
            if not progress.tasks[0].finished and spark.started:
                progress.update(starting, completed=1)
                clock.lap("starting Spark")
                progress.start_task(metadata)
                progress.start_task(transcription)
            # All at once: to ask for each took a fifth of a core from what is waited for.
            listed, _ = await ingestion.views.list(limit=200)
            views = {view.job_id: view for view in listed if view.job_id in wanted}
            ranks = [MEDIA.rank(view.stage) for view in views.values()]
            before = progress.tasks[1].completed
            progress.update(metadata, completed=sum(rank >= 1 for rank in ranks))
            progress.update(transcription, completed=sum(rank == 2 for rank in ranks))
            if before < len(wanted) and progress.tasks[1].finished:
                clock.lap("metadata, with Spark's first batch")
            await asyncio.sleep(0.1)
    clock.lap("transcription, with loading the model")
    return views


def cause_of(log: str) -> str:
    """Of what a pipeline said, the line that tells why it ended: ours, else the innermost error."""
    lines = [line.strip() for line in log.splitlines()]
    for pattern in _CAUSES:
        told = [line for line in lines if pattern.match(line)]
        if told:
            return told[-1].removeprefix("Caused by: ")
    return lines[-1] if lines else "It said nothing."


async def show(system: JobSystem, jobs: dict[str, str], views: dict[str, JobView]) -> None:
    table = Table(title="What was said", title_justify="left", box=None, expand=True)
    for column in ("sample", "stage", "took"):
        table.add_column(column, no_wrap=True, min_width=5)
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for job_id, name in jobs.items():
        view = views[job_id]
        text = await system.store.text(job_id)
        said = " ".join(" ".join(s.text.split()) for s in text.segments) if text else ""
        took = (view.updated_at - view.queued_at).total_seconds()
        mark = "[green]done[/]" if view.stage is JobStage.TRANSCRIPT_COMPLETE else "[red]failed[/]"
        table.add_row(name, mark, f"{took:.1f} s", said or view.reason or "")
    out.print(table)


def spent(clock: Clock) -> None:
    table = Table(title="Where the time went", title_justify="left", box=None, pad_edge=False)
    table.add_column("step")
    table.add_column("seconds", justify="right")
    for what, seconds in clock.laps:
        table.add_row(what, f"{seconds:.1f}")
    table.add_row("all", f"{sum(seconds for _, seconds in clock.laps):.1f}")
    out.print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forever", action="store_true", help="stay up until Ctrl-C")
    try:
        sys.exit(asyncio.run(main(parser.parse_args().forever)))
    except PenstockError as error:
        sys.exit(f"demo: {error}")
