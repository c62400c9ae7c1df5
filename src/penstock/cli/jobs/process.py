"""A command that keeps running: its log, and the signals that end it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable

from penstock.cli.apps.log_lines import JsonLines
from penstock.cli.ending import STOPPED_AT_ONCE, Ending
from penstock.cli.event_loop import run

_log = logging.getLogger("penstock.app")
_CHATTY = ("alembic", "faster_whisper", "httpx", "py4j", "uvicorn")


def log_to_terminal(*, as_json: bool = False) -> None:
    """To standard error: for people, or a JSON object a line with all fields for machines."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if as_json:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())
        logging.captureWarnings(True)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def run_until_stopped(
    work: Callable[[asyncio.Event], Awaitable[None]], *, log_json: bool = False
) -> None:
    """Run until SIGINT or SIGTERM, which end it in order; a second one ends it at once, with 1."""
    log_to_terminal(as_json=log_json)

    async def main(ending: Ending) -> bool:
        stop = asyncio.Event()
        task = asyncio.ensure_future(work(stop))
        ending.attach(stop=stop.set, cancel=task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
            return False
        return True

    with Ending(drain=None, code=1) as ending:
        if not run(main(ending)):
            _log.warning(STOPPED_AT_ONCE)
            sys.exit(1)
