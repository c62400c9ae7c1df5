"""`penstock pipeline report`: what the history of jobs says, in tables with bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from penstock.spark.jobs.analytics import Report

_BAR = 20


def show(console: Console, report: Report, names: Sequence[str], rows: Sequence[Any]) -> None:
    """One report: its columns, and a bar for the one that matters."""
    if not rows:
        console.print(f"[bold]{report.title}[/]: nothing.\n")
        return
    table = Table(title=report.title, title_justify="left", title_style="bold", box=None)
    for name in names:
        text = any(isinstance(row[name], str) for row in rows)
        # Two words of a heading may stand on two lines where a terminal is narrow.
        heading = name.replace("_", " ")
        table.add_column(heading, justify="left" if text else "right", no_wrap=text)
    table.add_column("")
    most = max((float(row[report.bar] or 0) for row in rows), default=0.0)
    for row in rows:
        bar = Bar(max(most, 1e-9), 0, float(row[report.bar] or 0), width=_BAR, color="cyan")
        table.add_row(*(_text(row[name]) for name in names), bar)
    console.print(table, "")


def plain(names: Sequence[str], rows: Iterable[Any]) -> list[dict[str, Any]]:
    """The rows as JSON has them."""
    return [{name: _plain(row[name]) for name in names} for row in rows]


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}"
        case float() | Decimal():
            return f"{value:,.3f}" if value < 10 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value
