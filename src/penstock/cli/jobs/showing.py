"""Jobs as a table in the terminal: what each is called, where it is, why, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.jobs.following import stage_text

_COLUMNS = ("job", "media", "stage", "changed", "about it")
_WHOLE = ("stage", "changed")
_ID = len("job_") + 32
_INFO = {"codec": "", "pages": " pages", "channelId": "", "speakerRole": ""}


def show_jobs(found: Sequence[dict[str, Any]], stages: Sequence[str], out: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        width = _ID if name == "job" else None
        table.add_column(name, no_wrap=name in _WHOLE, overflow="fold", min_width=width)
    for job in found:
        # The name below the id: beside it, neither would have room in a terminal of 80 columns.
        name = f"\n[bold]{escape(str(job['name']))}[/]" if job.get("name") else ""
        table.add_row(
            f"{job['jobId']}{name}",
            job["mediaType"],
            stage_text(job, stages),
            job["updatedAt"][11:19],
            escape(about(job)),
        )
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
    facts += [f"{info[key]}{unit}" for key, unit in _INFO.items() if info.get(key)]
    if (characters := job.get("characters")) is not None:
        facts.append(f"{characters:,} letters")
    return ", ".join(facts)


def _counted(found: Sequence[dict[str, Any]]) -> str:
    stages = Counter(job["stage"] for job in found)
    return ", ".join(f"{count} {stage}" for stage, count in stages.most_common())
