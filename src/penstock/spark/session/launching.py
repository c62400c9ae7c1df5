"""Ctrl-C while Spark's JVM starts, and while it is called."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# By the last of these, the root, py4j tells of a call that it was interrupted in; it raises it too.
_CALLS = [logging.getLogger(name) for name in ("py4j.clientserver", "py4j.java_gateway", None)]


@contextmanager
def heeding_ctrl_c() -> Iterator[None]:
    """Heed Ctrl-C, while entered, as soon as the JVM is there. PySpark waits for a file that says
    where to reach it, and takes the folder away when it is interrupted: the JVM, which then cannot
    write the file, would print pages and stay for ever."""
    from pyspark import SparkContext

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked: list[int] = []

    def heed(number: int, _: object) -> None:
        asked.append(number)
        if SparkContext._gateway is not None:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, heed)
    try:
        with leaving_out_ctrl_c():
            yield
    finally:
        # A session has a handler of its own for it, which ends its jobs.
        if signal.getsignal(signal.SIGINT) is heed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt


@contextmanager
def leaving_out_ctrl_c() -> Iterator[None]:
    """Leave out of the log, while entered, the calls that Ctrl-C interrupts: it is raised too."""
    for calls in _CALLS:
        calls.addFilter(_is_of_no_ctrl_c)
    try:
        yield
    finally:
        for calls in _CALLS:
            calls.removeFilter(_is_of_no_ctrl_c)


def _is_of_no_ctrl_c(record: logging.LogRecord) -> bool:
    """A session's own handler makes another call where one was interrupted: that is reentrant."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or "reentrant call" in str(error):
            return False
        error = error.__context__
    return True
