"""One process of an app: `penstock run` in one, or one of several under a supervisor.

Under a supervisor it is started as `python -m penstock.cli.apps.app_process`, told what to do by
one line on its input, and tells by a pipe how it is doing. When nobody reads that any more, it
drains.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import msgspec

from penstock.cli.apps.loading import load_app
from penstock.cli.apps.log_lines import write_logs
from penstock.cli.apps.pages import Page, serving
from penstock.cli.ending import STOPPED_AT_ONCE, Ending
from penstock.cli.event_loop import run
from penstock.connect import check_shared
from penstock.consuming import App
from penstock.errors import InvalidArgumentError, NotFoundError, PenstockError
from penstock.observing import PrometheusObserver

_log = logging.getLogger("penstock.app")

# Exit codes: what can be helped by starting again, and what cannot.
FAILED, MISTAKEN = 1, 78
HEARTBEAT = 1.0


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do."""

    app: str
    url: str | None = None
    drain: float = 30.0
    host: str = "127.0.0.1"
    health_port: int | None = None
    metrics_port: int | None = None
    metrics: bool = False
    log_level: str = "INFO"
    log_json: bool = False
    pipe: int | None = None
    shared: bool = False
    """Others run the same app, and must find the same broker."""


def main() -> None:
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    sys.exit(run_process(orders))


def run_process(orders: Orders) -> int:
    """Run the app until a signal; returns the exit code."""
    write_logs(orders.log_level, as_json=orders.log_json)
    try:
        app = _load(orders)
        with Ending(drain=orders.drain, code=FAILED) as ending:
            return run(_run(app, orders, ending))
    except asyncio.CancelledError:
        _log.warning(STOPPED_AT_ONCE)
        return FAILED
    except (InvalidArgumentError, NotFoundError) as error:
        _log.error("%s", error)
        return MISTAKEN
    except PenstockError as error:
        _log.error("%s", error)
        return FAILED
    except Exception:
        _log.exception("The app failed")
        return FAILED


def _load(orders: Orders) -> App:
    try:
        app = load_app(orders.app)
    except InvalidArgumentError:
        raise
    except Exception as error:
        _log.exception("%s cannot be imported", orders.app)
        raise InvalidArgumentError(f"{orders.app} cannot be imported: {error}") from error
    if orders.url is not None:
        app.url = orders.url
    if orders.shared:
        check_shared(app.url)
    if orders.metrics:
        app.observe(PrometheusObserver.of())
    app.bindings()
    return app


async def _run(app: App, orders: Orders, ending: Ending) -> int:
    stop = asyncio.Event()
    work = asyncio.ensure_future(_work(app, orders, stop, ending))
    ending.attach(stop=stop.set, cancel=work.cancel)
    code = FAILED
    try:
        code = await work
        return code
    finally:
        if not work.cancelled():
            ending.done(code)


async def _work(app: App, orders: Orders, stop: asyncio.Event, ending: Ending) -> int:
    async with AsyncExitStack() as stack:
        await _serve_pages(app, orders, stack)
        if orders.pipe is not None:
            telling = asyncio.ensure_future(_tell(app, orders.pipe, stop))
            stack.callback(telling.cancel)
        if not await _started(app, stop):
            return 0
        _log.info("Receiving from %s", ", ".join(one.name for one in app.subscriptions))
        try:
            await app.wait(stop)
        finally:
            ending.begin()
            _log.info("Draining, for at most %g s", orders.drain)
            report = await app.stop(timeout=orders.drain)
            if report.clean:
                _log.info("Stopped; nothing was left")
            else:
                _log.warning("Stopped; to be delivered again: %s", ", ".join(report.unfinished))
    return 0


async def _started(app: App, stop: asyncio.Event) -> bool:
    """Whether it was started before it was told to stop: a broker may be long in coming."""
    starting, stopping = asyncio.ensure_future(app.start()), asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        return False
    await starting
    return True


async def _serve_pages(app: App, orders: Orders, stack: AsyncExitStack) -> None:
    for port, pages in ports(orders, _health(app), _own_metrics).items():
        bound = await stack.enter_async_context(serving(pages, orders.host, port))
        _log.info("http://%s:%d%s", orders.host, bound, " ".join(pages))


def ports(
    orders: Orders, health: dict[str, Page], metrics: Callable[[], tuple[int, str]]
) -> dict[int, dict[str, Page]]:
    """What is to be served on which port."""
    found: dict[int, dict[str, Page]] = {}
    if orders.health_port is not None:
        found.setdefault(orders.health_port, {}).update(health)
    if orders.metrics_port is not None:
        found.setdefault(orders.metrics_port, {})["/metrics"] = metrics
    return found


def _health(app: App) -> dict[str, Page]:
    return {
        "/live": lambda: (200, "alive\n"),
        "/ready": lambda: (200, "ready\n") if app.ready else (503, "not ready\n"),
    }


def _own_metrics() -> tuple[int, str]:
    from prometheus_client import generate_latest

    return 200, generate_latest().decode()


async def _tell(app: App, pipe: int, stop: asyncio.Event) -> None:
    """Say every second whether we are ready. A supervisor that is gone is a signal to end."""
    os.set_blocking(pipe, False)
    while True:
        with suppress(BlockingIOError):
            try:
                os.write(pipe, b"1" if app.ready else b"0")
            except BrokenPipeError:
                _log.warning("The supervisor is gone")
                stop.set()
                return
        await asyncio.sleep(HEARTBEAT)


if __name__ == "__main__":
    main()
