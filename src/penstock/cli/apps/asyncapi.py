"""`penstock asyncapi`: an app's contract, as a document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.apps.loading import load_app


def asyncapi(
    app: Annotated[str, typer.Argument(help="The app, such as shop:app.", metavar="MODULE:APP")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it to a file.")
    ] = None,
) -> None:
    """Describe an app by AsyncAPI 3: its topics, what it receives and sends, and its shape."""
    from penstock.consuming.asyncapi import describe

    document = msgspec.json.format(msgspec.json.encode(describe(load_app(app)))) + b"\n"
    if output is None:
        typer.echo(document.decode(), nl=False)
    else:
        output.write_bytes(document)
