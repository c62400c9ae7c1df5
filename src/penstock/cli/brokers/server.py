"""`penstock server`: the NATS server behind local://DIR."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from penstock.cli.brokers.broker import AsJson, print_json
from penstock.cli.exit_codes import NOT_ALL
from penstock.connect import own_server
from penstock.own_server import OwnServer, ServerState

server = typer.Typer(help="The local server of a folder.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The folder of local://DIR.", metavar="DIR")]


@server.command()
def start(folder: Folder) -> None:
    """Start it, or find it running, and keep it running when nobody uses it."""
    state = _of(folder).keep()
    typer.echo(_where(state, folder))
    typer.echo("It syncs every write: what it acknowledged survives a power failure.")
    stop_it = f"penstock server stop {quote(str(folder))}"
    typer.echo(f"Use it as local://{folder}; stop it with: {stop_it}")


@server.command()
def stop(folder: Folder) -> None:
    """Stop it, whoever uses it."""
    typer.echo("Stopped." if _of(folder).stop() else "It was not running.")


@server.command()
def status(folder: Folder, json: AsJson = False) -> None:
    """Say whether it runs; ends with 1 when it does not."""
    state = _of(folder).state()
    if json:
        where = {"port": state.port, "process": state.pid} if state is not None else {}
        print_json({"folder": str(folder), "running": state is not None, **where})
    elif state is None:
        typer.echo(f"Not running: {folder}")
    else:
        typer.echo(_where(state, folder))
    if state is None:
        raise typer.Exit(NOT_ALL)


def _where(state: ServerState, folder: Path) -> str:
    return f"Running on 127.0.0.1:{state.port} (process {state.pid}), stored in {folder}."


def _of(folder: Path) -> OwnServer:
    return own_server(f"local://{folder}")
