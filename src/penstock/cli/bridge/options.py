"""What the commands of a bridge have in common: which bridge it is."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.bridge import BridgeSettings

App = Annotated[str | None, typer.Option("--app", help="This app.")]
Destination = Annotated[str | None, typer.Option("--destination", help="The other app.")]
Stream = Annotated[str | None, typer.Option("--stream", help="Their stream.")]
Url = Annotated[str | None, typer.Option("--url", help="The broker, such as nats://HOST.")]
Address = Annotated[str | None, typer.Option("--database", help="Where outbox and inbox are.")]


def settings_from(
    app: str | None, destination: str | None, stream: str | None, url: str | None,
    database: str | None = None, **more: Any,
) -> BridgeSettings:  # fmt: skip
    return BridgeSettings.read(
        app_name=app, destination_app=destination, stream_name=stream, url=url,
        database_url=database, **more,
    )  # fmt: skip
