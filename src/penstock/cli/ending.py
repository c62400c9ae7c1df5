"""The end of a process: asked once it drains; asked twice, or too late, it ends all the same.

A thread listens, because an event loop hears nothing while a handler blocks it, and waits for ever
for one that refuses to be cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from select import select
from typing import Any, Self, TypeAlias

STOPPED_AT_ONCE = "Stopped at once: what was in hand will be delivered again"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# After draining: what was cancelled cleans up, connections are closed. A supervisor waits longer.
_GRACE = 8.0
# What goes without waiting for anybody: cancelling, and letting go.
_AT_ONCE = 1.0
# There is a limit to what may be waited for at a time.
_LONGEST = 3600.0

Call: TypeAlias = Callable[[], object]


class Ending:
    """Hears SIGINT and SIGTERM while entered, in the main thread.

    The first asks it to stop, which may take `drain` seconds and a few to clean up; None: as long
    as it likes. The second cancels it, which may take a second. A process that takes longer is
    ended with `code`, and a line says so.
    """

    def __init__(self, *, drain: float | None, code: int) -> None:
        self._drain = drain
        self._code = code
        self._late = "Not done in time: what was in hand will be delivered again"
        self._until: float | None = None
        self._ears, self._mouth = socket.socketpair()
        self._by_system = self._by_python = self._by_app = self._heeded = 0
        self._stop: Call | None = None
        self._cancel: Call | None = None
        self._before: list[Any] = []
        self._wakes = -1
        self._others: socket.socket | None = None

    def attach(self, *, stop: Call, cancel: Call) -> None:
        """What the event loop that runs here calls after the first signal, and the second."""
        loop = asyncio.get_running_loop()
        self._hear_before_others()
        self.attach_calls(stop=partial(_soon, loop, stop), cancel=partial(_soon, loop, cancel))

    def attach_calls(self, *, stop: Call, cancel: Call) -> None:
        """The same where no event loop runs: called by the thread that listens."""
        self._cancel, self._stop = cancel, stop
        self._wake()

    def begin(self) -> None:
        """The app ends for a reason of its own: it has as long as after a signal."""
        self._by_app = 1
        self._wake()

    def done(self, code: int) -> None:
        """All that matters is done: whatever still runs has a second."""
        self._code, self._late = code, "What did not let itself be cancelled was ended"
        self._hurry(_AT_ONCE)
        self._wake()

    def __enter__(self) -> Self:
        self._mouth.setblocking(False)
        # The system writes there at once. What Python calls waits until the main thread is back
        # from wherever it is; it counts when somebody else took over what wakes us.
        self._wakes = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        self._before = [signal.signal(number, self._on_signal) for number in _SIGNALS]
        os.register_at_fork(after_in_child=self._let_go)
        threading.Thread(target=self._listen, name="ending", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def _hear_before_others(self) -> None:
        """uvloop takes over what wakes us when it begins to run, and hears nothing while it is
        blocked. It is told by us, and by a copy: ours to close, whoever has closed it before."""
        taken = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        if taken not in (-1, self._mouth.fileno()):
            self._others = socket.socket(fileno=os.dup(taken))

    def _let_go(self) -> None:
        """Also in a child that was forked: its signals are its own."""
        before, self._before = self._before, []
        if before:
            for number, handler in zip(_SIGNALS, before, strict=True):
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wakes)
            self._mouth.close()
            if self._others is not None:
                self._others.close()

    def _on_signal(self, *_: object) -> None:
        self._by_python += 1
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            self._mouth.send(b"\0")

    def _listen(self) -> None:
        with self._ears:
            while True:
                left = inf if self._until is None else self._until - time.monotonic()
                if left <= 0:
                    self._end(self._late)
                if not select([self._ears], [], [], min(left, _LONGEST))[0]:
                    continue
                heard = self._ears.recv(64)
                if not heard:
                    return
                self._pass_on(heard)
                self._by_system += sum(number in _SIGNALS for number in heard)
                if self._stop is not None and self._cancel is not None:
                    self._heed(self._stop, self._cancel)

    def _pass_on(self, heard: bytes) -> None:
        """That there were signals, not which: that Python says, and an app that is told of one by
        both may hear it twice."""
        if self._others is not None and any(heard):
            with suppress(OSError):  # It does not listen any more, or has enough to hear.
                self._others.send(b"\0", socket.MSG_DONTWAIT)

    def _heed(self, stop: Call, cancel: Call) -> None:
        before, self._heeded = self._heeded, max(self._by_system, self._by_python, self._by_app)
        if before < 1 <= self._heeded:
            if self._drain is not None:
                self._hurry(self._drain + _GRACE)
            stop()
        if before < 2 <= self._heeded:
            self._late = STOPPED_AT_ONCE
            self._hurry(_AT_ONCE)
            cancel()
        if before < 3 <= self._heeded:
            self._end(STOPPED_AT_ONCE)

    def _hurry(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._until = until if self._until is None else min(until, self._until)

    def _end(self, why: str) -> None:
        _last_words(why)
        os._exit(self._code)


def _soon(loop: asyncio.AbstractEventLoop, call: Call) -> None:
    with suppress(RuntimeError):  # It has ended by itself.
        loop.call_soon_threadsafe(call)


def _last_words(text: str) -> None:
    """A warning of a process that ends at once. It waits for no lock and no reader: whoever holds
    the one up may never let go of it."""
    record = logging.LogRecord("penstock.app", logging.WARNING, "", 0, text, (), None)
    for handler in logging.getLogger().handlers:
        line = f"{handler.format(record)}\n".encode()
        out = sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
        if select([], [out], [], 0.1)[1]:
            os.write(out, line)
