"""`penstock run`: an app, in one process or several."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.apps.app_process import Orders, run_process
from penstock.cli.file_options import or_in_file
from penstock.config import DAY, check_duration
from penstock.errors import InvalidArgumentError


def run(
    app: Annotated[str, typer.Argument(help="The app, such as shop:app.", metavar="MODULE:APP")],
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when a source file changes.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            help="The broker, instead of the app's own.",
            envvar="PENSTOCK_URL",
            show_envvar=True,
            callback=or_in_file,
        ),
    ] = None,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds to finish what is in hand when told to end.")
    ] = 30.0,
    host: Annotated[str, typer.Option(help="Where the ports listen.")] = "127.0.0.1",
    health_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Serve /live and /ready; 0: a free port.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Serve /metrics; 0: a free port.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="Logs as JSON lines.")] = False,
) -> None:
    """Run an app until SIGINT or SIGTERM, which drain it; a second one ends it at once."""
    if log_level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise InvalidArgumentError(f"--log-level is debug, info, warning or error, not {log_level}")
    check_duration("--drain", drain, 0, 7 * DAY)
    if metrics_port is not None and find_spec("prometheus_client") is None:
        raise InvalidArgumentError(
            "--metrics-port needs prometheus-client: pip install 'penstock[telemetry]'"
        )
    orders = Orders(
        app=app,
        url=url,
        drain=drain,
        host=host,
        health_port=health_port,
        metrics_port=metrics_port,
        metrics=metrics_port is not None,
        log_level=log_level,
        log_json=log_json,
    )
    if workers == 1 and not reload:
        code = run_process(orders)
    else:
        from penstock.cli.apps.supervising import supervise

        code = supervise(orders, workers, reload=Path.cwd() if reload else None)
    raise typer.Exit(code)
