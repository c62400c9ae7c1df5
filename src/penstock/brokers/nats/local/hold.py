"""Holds the server of `local://DIR` for a process that may be killed.

Spark ends the process of a stream reader with SIGKILL, which leaves no time to let go of a server.
So another process uses the server in its place. It notices the end, because its standard input
ends, and leaves as the last user should.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from penstock.brokers.nats.local.folder import LocalServer
from penstock.errors import UnavailableError

_BYE = b"bye"


class HoldableServer(LocalServer):
    """The server of a folder, for who operates it."""

    def hold(self) -> ServerHold:
        return ServerHold(self.directory)


class ServerHold:
    """The server runs until this is closed, or its process has ended."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", __name__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self._process.stdout is not None  # noqa: S101
        with self._process.stdout as answer:
            ready = answer.readline()
        if ready != b"ready\n":
            self.close()
            raise UnavailableError(f"The local server in {folder} did not start; see its log")

    def close(self) -> None:
        with suppress(OSError, ValueError):  # It may have ended, or been closed.
            assert self._process.stdin is not None  # noqa: S101
            with self._process.stdin as pipe:
                pipe.write(_BYE)
        self._process.wait()


def main() -> None:
    local, parent = LocalServer(Path(sys.argv[1])), os.getppid()
    local.enter()
    try:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if sys.stdin.buffer.read() != _BYE:
            # It is dying, and may hold its lock a moment longer than the other end of our input.
            while os.getppid() == parent:
                time.sleep(0.01)
    finally:
        local.leave()


if __name__ == "__main__":
    main()
