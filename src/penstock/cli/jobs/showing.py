"""Jobs as a table in the terminal: what each is called, where it is, why, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.jobs.following import stage_text

_ID = len("job_") + 32
_INFO = ("codec", "channelId", "speakerRole")


def show_jobs(found: Sequence[dict[str, Any]], stages: Sequence[str], out: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("job", width=_ID, overflow="fold")
    table.add_column("media", no_wrap=True)
    table.add_column("stage", overflow="fold")
    table.add_column("at (UTC)", no_wrap=True)
    for job in found:
        # One below the other: side by side they have no room in a terminal of 80 columns.
        name = f"[bold]{escape(str(job['name']))}[/]" if job.get("name") else ""
        lines = filter(None, (job["jobId"], name, escape(about(job))))
        changed = job["updatedAt"][11:19]
        table.add_row("\n".join(lines), job["mediaType"], stage_text(job, stages), changed)
    out.print(table)
    if len(found) > 1:
        out.print(f"{len(found)} jobs: {_counted(found)}")
    for job in found:
        if job.get("advice"):
            name = job.get("name") or job["jobId"]
            out.print(f"[red]{escape(str(name))}[/]: {escape(job['advice'])}")


def about(job: dict[str, Any]) -> str:
    """What was found out about its media."""
    info = job.get("info") or {}
    facts = []
    if (duration := job.get("duration")) is not None:
        facts.append(f"{duration:.1f} s")
    if size := job.get("size") or info.get("size"):
        facts.append(f"{size:,} bytes")
    if pages := info.get("pages"):
        facts.append("1 page" if pages == 1 else f"{pages:,} pages")
    facts += [str(info[key]) for key in _INFO if info.get(key)]
    if (characters := job.get("characters")) is not None:
        facts.append(f"{characters:,} letters")
    return ", ".join(facts)


def _counted(found: Sequence[dict[str, Any]]) -> str:
    stages = Counter(job["stage"] for job in found)
    return ", ".join(f"{count} {stage}" for stage, count in stages.most_common())
