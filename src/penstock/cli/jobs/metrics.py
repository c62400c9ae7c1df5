"""What commands that keep running count, and where it can be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import typer

from penstock.errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from penstock.jobs.telemetry import JobObserver


@cache
def observer() -> JobObserver:
    """Logs, and metrics where prometheus-client is installed. One for the process: its metrics
    have their names to themselves."""
    from penstock.jobs.telemetry import JobObservers, LoggingObserver, PrometheusJobObserver

    try:
        return JobObservers(LoggingObserver(), PrometheusJobObserver())
    except ImportError:
        return LoggingObserver()


@contextmanager
def serving_metrics(port: int | None) -> Iterator[None]:
    """Prometheus metrics on a port of this machine alone, while entered; 0 takes a free one."""
    if port is None:
        yield
        return
    try:
        from prometheus_client import start_http_server
    except ImportError:
        raise InvalidArgumentError(
            "--metrics-port needs prometheus-client: pip install 'penstock[telemetry]'"
        ) from None
    try:
        server, thread = start_http_server(port, addr="127.0.0.1")
    except OSError as error:
        raise UnavailableError(
            f"Cannot serve metrics on port {port}: {error.strerror}; choose another port"
        ) from None
    try:
        typer.echo(f"Metrics on http://127.0.0.1:{server.server_port}/metrics.")
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
