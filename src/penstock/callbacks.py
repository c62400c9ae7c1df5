"""Functions of the caller: naming them in errors, and calling them, who may raise anything, without
letting them hurt the flow."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any
from weakref import WeakKeyDictionary

_log = logging.getLogger("penstock")
# After a wish to end the program everything is closed, which another must not end half-way; a loop
# that still runs after so many seconds went on instead.
_CLOSING = 60.0
# Of the event loop, because who wants to leave may know nothing of others who do.
_closed_by: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()


def survive(error: BaseException, what: str) -> None:
    """Log what a function of the caller raised, and go on."""
    _log.error("%s failed", what, exc_info=error)
    leave_later(error)


def leave_later(error: BaseException) -> None:
    """A wish to end the program is granted by the event loop, once everything here is in order;
    the first one, whoever has others."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= _closed_by.get(loop, now):
            _closed_by[loop] = now + _CLOSING
            loop.call_soon(_leave, error)


def _leave(error: BaseException) -> None:
    raise error


def where(function: Any) -> str:
    """A function as an error names it: its name, its file and line."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(inspect.unwrap(underlying(function)), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def underlying(function: Any) -> Any:
    """The plain function behind a method, a partial or an object that can be called."""
    while hasattr(function, "func") and callable(function.func):  # functools.partial
        function = function.func
    if inspect.ismethod(function):
        return function.__func__
    if inspect.isfunction(function) or not callable(function):
        return function
    call = type(function).__call__
    return call if inspect.isfunction(call) else function
