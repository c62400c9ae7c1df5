"""Taking what one process at a time may have: files that are locked, and ports."""

from __future__ import annotations

import fcntl
import socket
import time
from collections.abc import Callable
from typing import IO, Any

_LOOK_AGAIN = 0.02
# A server that has just died may need a moment to let go of its port.
_PORT_WITHIN = 1.0


def flocked(file: IO[Any], within: float, check_wanted: Callable[[], None] = lambda: None) -> bool:
    """Nobody else has the file locked, and now we have; False when that took too many seconds.

    `check_wanted` is called while waiting, and may raise.
    """

    def lock() -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            check_wanted()
            return False
        return True

    return _happens(lock, within)


def is_free(port: int) -> bool:
    """Nobody listens there, on loopback."""

    def bind() -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
        return True

    return _happens(bind, _PORT_WITHIN)


def _happens(act: Callable[[], bool], within: float) -> bool:
    until = time.monotonic() + within
    while not act():
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_AGAIN)
    return True
