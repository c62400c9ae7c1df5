"""Calling functions of the caller, which may raise anything, without letting them hurt the flow."""

from __future__ import annotations

import asyncio
import logging

_log = logging.getLogger("penstock")


def survive(error: BaseException, what: str) -> None:
    """Log what a function of the caller raised, and go on."""
    _log.error("%s failed", what, exc_info=error)
    leave_later(error)


def leave_later(error: BaseException) -> None:
    """A wish to end the program is granted by the event loop, once everything here is in order."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        asyncio.get_running_loop().call_soon(_leave, error)


def _leave(error: BaseException) -> None:
    raise error
