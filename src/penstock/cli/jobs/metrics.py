"""What commands that keep running count, and where it can be read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING

import typer

from penstock.cli.apps.pages import Page, serving
from penstock.errors import InvalidArgumentError
from penstock.lifetime import running_beside
from penstock.retrying import Outage, do_every

if TYPE_CHECKING:
    from penstock.jobs.system import JobSystem
    from penstock.jobs.telemetry import JobObserver

_log = logging.getLogger("penstock.jobs")
_LOOK_EVERY = 5.0
_ANSWERS_WITHIN = 5.0


@cache
def observer() -> JobObserver:
    """Logs, and metrics where prometheus-client is installed. One for the process: its metrics
    have their names to themselves."""
    from penstock.jobs.telemetry import JobObservers, LoggingObserver, PrometheusJobObserver

    try:
        return JobObservers(LoggingObserver(), PrometheusJobObserver())
    except ImportError:
        return LoggingObserver()


class Readiness:
    """Whether a process does its work, for whoever sends it some or starts it again."""

    def __init__(self) -> None:
        self.lacks: str | None = "it is starting"
        """What is in the way, if anything is."""
        self.ask: Callable[[], str | None] = lambda: None
        """Somebody who knows more, each time that somebody wants to know."""

    def page(self) -> tuple[int, str]:
        lacks = self.lacks or self.ask()
        return (200, "ready\n") if lacks is None else (503, f"not ready: {lacks}\n")


@asynccontextmanager
async def serving_metrics(host: str, port: int | None) -> AsyncIterator[Readiness]:
    """`/metrics`, `/live` and `/ready` while entered, answered by this very event loop: while it
    hangs nobody is told that it lives. Port 0 takes a free one; without one nothing is served."""
    readiness = Readiness()
    if port is None:
        yield readiness
        return
    pages = {
        "/metrics": _metrics_page(),
        "/live": lambda: (200, "alive\n"),
        "/ready": readiness.page,
    }
    async with serving(pages, host, port) as taken:
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"Metrics on http://{shown}:{taken}/metrics; /live and /ready as well.")
        yield readiness


def _metrics_page() -> Page:
    try:
        from prometheus_client import generate_latest
    except ImportError:
        raise InvalidArgumentError(
            "--metrics-port needs prometheus-client: pip install 'penstock[telemetry]'"
        ) from None
    return lambda: (200, generate_latest().decode())


@contextmanager
def serving_metrics_beside(host: str, port: int | None) -> Iterator[Readiness]:
    """The same from a thread of its own, for a process whose main thread waits for Spark."""
    entered: Future[Readiness] = Future()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        try:
            async with serving_metrics(host, port) as readiness:
                entered.set_result(readiness)
                await done.wait()
        except Exception as error:
            if entered.done():
                raise
            entered.set_exception(error)

    thread = Thread(target=loop.run_until_complete, args=(serve(),), name="metrics", daemon=True)
    thread.start()
    try:
        yield entered.result()
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


@asynccontextmanager
async def keeping_ready(system: JobSystem, readiness: Readiness) -> AsyncIterator[None]:
    """Ready while broker and database answer; looked at every few seconds, while entered."""

    async def look() -> None:
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN):
                await system.database.ping()
                await (await system.pubsub.broker()).ping()
        except Exception:
            readiness.lacks = "broker or database does not answer; the log says more"
            raise
        readiness.lacks = None

    outage = Outage(_log, "The process is not ready")
    async with running_beside(do_every(_LOOK_EVERY, look, outage)):
        try:
            yield
        finally:
            readiness.lacks = "it is stopping"
