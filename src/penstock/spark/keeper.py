"""Keeps the server of `local://DIR` running for as long as another process lives.

Spark ends the process of a stream reader with SIGKILL, which leaves no time to let go of a server.
A keeper notices, because its standard input ends, and lets go in its place.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from penstock.brokers.nats.local import LocalServer
from penstock.errors import UnavailableError


class Keeper:
    """Start one with `keep`; closing it, or dying, ends it."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "penstock.spark.keeper", str(folder)],
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
        with suppress(OSError):
            assert self._process.stdin is not None  # noqa: S101
            self._process.stdin.close()
        self._process.wait()


def main() -> None:
    local = LocalServer(Path(sys.argv[1]))
    local.enter()
    try:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()
    finally:
        local.leave()


if __name__ == "__main__":
    main()
