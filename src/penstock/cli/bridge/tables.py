"""`penstock bridge outbox` and `penstock bridge inbox`: the rows of both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.bridge import BridgeSettings
from penstock.cli.bridge.options import Address, App, Destination, Stream, settings_from
from penstock.cli.brokers.broker import moment
from penstock.cli.plain_text import safe
from penstock.errors import InvalidArgumentError

if TYPE_CHECKING:
    from penstock.bridge.outbox import EventOutbox
    from penstock.transactional import Inbox

outbox = typer.Typer(help="Events that wait to be published.", no_args_is_help=True)
inbox = typer.Typer(help="Events that were received.", no_args_is_help=True)
T = TypeVar("T")
_NO_LIMIT = 2**62

Status = Annotated[str | None, typer.Option(help="Only with this status.")]
Limit = Annotated[int, typer.Option(min=1, help="The newest so many.")]
OlderThan = Annotated[str, typer.Option(help="Since so long ago: 36h, 7d.")]


@outbox.command("list")
def outbox_list(
    status: Status = None, limit: Limit = 50, database: Address = None, app: App = None,
    destination: Destination = None, stream: Stream = None,
) -> None:  # fmt: skip
    """List events: pending, publishing, sent, failed or exception."""
    settings = _with_outbox(app, destination, stream, database)
    rows = _on_outbox(settings, lambda held: held.rows(status, limit=limit))
    _show(rows, ("id", "event_id", "event_type", "resource_id", "status", "attempts"))


@outbox.command("retry")
def outbox_retry(
    ids: Annotated[list[int] | None, typer.Argument(help="Rows by id.", metavar="[ID]...")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that failed.")] = False,
    database: Address = None, app: App = None, destination: Destination = None,
    stream: Stream = None,
) -> None:  # fmt: skip
    """Let failed events be published after all, under their ids."""
    if not ids and not every:
        raise InvalidArgumentError("Which events? Give ids of rows, or --all")
    settings = _with_outbox(app, destination, stream, database)
    topic = settings.names.stream_name
    count = _on_outbox(
        settings, lambda held: held.outbox.requeue(ids or None, topic=topic, limit=_NO_LIMIT)
    )
    typer.echo(f"{count:,} will be published again.")


@outbox.command("purge")
def outbox_purge(
    older_than: OlderThan = "7d", database: Address = None, app: App = None,
    destination: Destination = None, stream: Stream = None,
) -> None:  # fmt: skip
    """Delete what was sent so long ago."""
    settings = _with_outbox(app, destination, stream, database)
    seconds = _seconds(older_than)
    topic = settings.names.stream_name
    count = _on_outbox(settings, lambda held: held.outbox.clean(seconds, topic=topic))
    typer.echo(f"Deleted {count:,}.")


@inbox.command("list")
def inbox_list(
    status: Status = None, limit: Limit = 50, database: Address = None, app: App = None,
    destination: Destination = None, stream: Stream = None,
) -> None:  # fmt: skip
    """List events: received, processing, processed or failed."""
    settings = _with_inbox(app, destination, stream, database)
    rows = _on_inbox(settings, lambda held: held.rows(status, limit=limit))
    _show(rows, ("event_id", "event_type", "status", "processing_attempts", "error_message"))


@inbox.command("purge")
def inbox_purge(
    older_than: OlderThan = "31d", database: Address = None, app: App = None,
    destination: Destination = None, stream: Stream = None,
) -> None:  # fmt: skip
    """Delete what nothing has happened to for so long; never what may be delivered again."""
    settings = _with_inbox(app, destination, stream, database)
    count = _on_inbox(settings, lambda held: held.clean(_seconds(older_than)))
    typer.echo(f"Deleted {count:,}.")


def _with_outbox(
    app: str | None, destination: str | None, stream: str | None, database: str | None
) -> BridgeSettings:
    return settings_from(app, destination, stream, None, database, use_outbox=True)


def _with_inbox(
    app: str | None, destination: str | None, stream: str | None, database: str | None
) -> BridgeSettings:
    return settings_from(app, destination, stream, None, database, use_inbox=True)


def _on_outbox(settings: BridgeSettings, work: Callable[[EventOutbox], Awaitable[T]]) -> T:
    from penstock.bridge.outbox import EventOutbox
    from penstock.transactional import Database

    async def main() -> T:
        async with Database(str(settings.database_url), create=False) as database:
            held = EventOutbox(database, settings.names.stream_name)
            await held.outbox.check()
            return await work(held)

    return asyncio.run(main())


def _on_inbox(settings: BridgeSettings, work: Callable[[Inbox], Awaitable[T]]) -> T:
    from penstock.transactional import Database, Inbox

    async def main() -> T:
        async with Database(str(settings.database_url), create=False) as database:
            held = Inbox(database, settings.names.durable, replay_horizon=settings.replay_horizon)
            await held.check()
            return await work(held)

    return asyncio.run(main())


def _seconds(text: str) -> float:
    since = moment(text)
    if since is None or not text[-1:].isalpha():
        raise InvalidArgumentError(f"{text!r} is no length of time; write 90s, 15m, 36h or 7d")
    return (datetime.now(UTC) - since).total_seconds()


def _show(rows: list[Any], columns: tuple[str, ...]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name.replace("_", " "), no_wrap=name in ("id", "event_id", "status"))
    for row in rows:
        cells = (getattr(row, name) for name in columns)
        table.add_row(*(Text(safe("" if cell is None else str(cell))) for cell in cells))
    Console().print(table)
