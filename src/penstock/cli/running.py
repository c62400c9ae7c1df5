"""What commands that keep running have in common: settings, logs, signals."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.connect import broker_kind
from penstock.errors import InvalidArgumentError
from penstock.jobs.settings import JobSettings, load_settings

Configuration = Annotated[
    Path | None,
    typer.Option(help="Settings (TOML).", envvar="PENSTOCK_CONFIG", show_envvar=True),
]

Url = Annotated[str | None, typer.Option(help="The broker, such as local://DIR.")]
DatabaseUrl = Annotated[str | None, typer.Option(help="Where jobs are kept.")]
MediaFolder = Annotated[Path | None, typer.Option(help="The media folder.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="Serve Prometheus metrics on 127.0.0.1; 0: a free port."),
]
_CHATTY = ("faster_whisper", "httpx", "py4j", "uvicorn")


def settings_from(config: Path | None, **arguments: Any) -> JobSettings:
    """The settings of a process among others: a broker in memory would be its own alone."""
    settings = load_settings(config, **arguments)
    if not broker_kind(settings.url).shared:
        scheme = settings.url.partition("://")[0]
        raise InvalidArgumentError(
            f"The broker {scheme}:// cannot be shared with other processes; give one that can, "
            "such as --url local://./penstock-data or --url nats://127.0.0.1"
        )
    return settings


def log_to_terminal() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def run_until_stopped(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run until SIGINT or SIGTERM, which end it in order; a second one ends it at once."""
    log_to_terminal()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        task = asyncio.ensure_future(work(stop))

        def on_signal() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        try:
            await task
        except asyncio.CancelledError:
            if not stop.is_set():
                raise

    asyncio.run(main())
