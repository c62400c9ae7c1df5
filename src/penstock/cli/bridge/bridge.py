"""`penstock bridge`: provision at deploy time, look after it at run time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import typer

from penstock.bridge import Bridge, BridgeSettings
from penstock.bridge.connection import servers
from penstock.cli.bridge.options import (
    Address,
    App,
    Destination,
    Stream,
    Url,
    settings_from,
)
from penstock.cli.bridge.tables import inbox, outbox
from penstock.cli.jobs.process import run_until_stopped

if TYPE_CHECKING:
    from penstock.transactional import schema

bridge = typer.Typer(
    help="A bridge between two apps. Settings come from PENSTOCK_BRIDGE_… variables or options.",
    no_args_is_help=True,
)
bridge.add_typer(outbox, name="outbox")
bridge.add_typer(inbox, name="inbox")
T = TypeVar("T")


@bridge.command()
def provision(
    app: App = None, destination: Destination = None, stream: Stream = None, url: Url = None
) -> None:
    """Create streams and consumer as far as they are missing. Safe to repeat."""
    done = _on_bridge(settings_from(app, destination, stream, url), lambda made: made.provision())
    for line in done.changed:
        typer.echo(f"changed   {line}")
    for line in done.unchanged:
        typer.echo(f"as it was {line}")


@bridge.command()
def validate(
    app: App = None, destination: Destination = None, stream: Stream = None, url: Url = None
) -> None:
    """Say what is not as it should be; ends with 1 when something is not."""
    settings = settings_from(app, destination, stream, url)
    for line in settings.names.advice():
        typer.echo(f"advice: {line}")
    problems = _on_bridge(settings, lambda made: made.problems())
    for line in problems:
        typer.echo(f"problem: {line}")
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{settings.names.source_subject} and back: everything is there.")


@bridge.command()
def health(
    app: App = None, destination: Destination = None, stream: Stream = None, url: Url = None,
    database: Address = None,
) -> None:  # fmt: skip
    """Say how it is, as JSON; ends with 1 when it is not well. Creates nothing."""
    settings = settings_from(app, destination, stream, url, database)

    async def look(made: Bridge) -> dict[str, Any]:
        if settings.use_outbox or settings.use_inbox:
            await made.open_database()
        return await made.health_check()

    found = _on_bridge(settings, look)
    typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    if not found["healthy"]:
        raise typer.Exit(1)


@bridge.command("test-connection")
def check_connection(
    app: App = None, destination: Destination = None, stream: Stream = None, url: Url = None
) -> None:
    """Connect to the broker once, and say how long a round trip takes."""
    settings = settings_from(app, destination, stream, url, connect_retry_attempts=1)
    took = _on_bridge(settings, lambda made: made.connection.check())
    typer.echo(
        f"Connected to {', '.join(servers(settings.url))}: {took * 1000:.1f} ms there and back."
    )


@bridge.command()
def debug(
    app: App = None, destination: Destination = None, stream: Stream = None, url: Url = None,
    database: Address = None,
) -> None:  # fmt: skip
    """Show settings, names, connection, streams and tables, for a report. Shows no secrets."""
    from penstock.transactional import Database

    settings = settings_from(app, destination, stream, url, database)
    names = settings.names
    shown = {one.name: getattr(settings, one.name) for one in fields(settings)}
    shown["url"] = ", ".join(servers(settings.url))
    shown["database_url"] = Database(settings.database_url).place if settings.database_url else None
    for name, value in shown.items():
        typer.echo(f"{name:<24} {value}")
    for name in ("source_subject", "destination_subject", "dlq_subject", "durable", "dlq_stream"):
        typer.echo(f"{name:<24} {getattr(names, name)}")
    typer.echo(f"{'connection':<24} {_told(settings, _round_trip)}")
    typer.echo(f"{'topology':<24} {_told(settings, _topology)}")
    if settings.database_url:
        for one in _run(_tables(settings.database_url)):
            typer.echo(f"{'tables of ' + one.part.name:<24} {one}")


@bridge.command()
def relay(
    app: App = None, destination: Destination = None, stream: Stream = None, url: Url = None,
    database: Address = None,
) -> None:  # fmt: skip
    """Publish what the outbox holds, until interrupted. Run as many as you like."""
    settings = settings_from(app, destination, stream, url, database, use_outbox=True)

    async def work(stop: asyncio.Event) -> None:
        async with Bridge.of(settings, relay=True):
            typer.echo(f"Publishing to {settings.names.source_subject}. Ctrl-C stops.")
            await stop.wait()

    run_until_stopped(work)


def _on_bridge(settings: BridgeSettings, work: Callable[[Bridge], Awaitable[T]]) -> T:
    """Do it with a bridge that neither provisions nor relays by itself."""

    async def main() -> T:
        made = Bridge.of(settings, relay=False)
        try:
            return await work(made)
        finally:
            await made.aclose()

    return asyncio.run(main())


def _run(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return asyncio.run(main())


async def _tables(url: str) -> list[schema.PartStatus]:
    from penstock.transactional import Database, schema

    async with Database(url) as database:
        return await schema.status(database)


def _told(settings: BridgeSettings, look: Callable[[Bridge], Awaitable[str]]) -> str:
    """What it found, or what was in the way: a report has a line either way."""
    try:
        return _on_bridge(settings, look)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


async def _round_trip(made: Bridge) -> str:
    return f"{await made.connection.check() * 1000:.1f} ms there and back"


async def _topology(made: Bridge) -> str:
    return "; ".join(await made.problems()) or "everything is there"
