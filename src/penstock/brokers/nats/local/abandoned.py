"""`python -m penstock.brokers.nats.local.abandoned DIR PID`: stops a server that nobody uses."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from penstock.brokers.nats.local import process as server
from penstock.brokers.nats.local.folder import LocalServer
from penstock.brokers.nats.local.state import config_file, read_state
from penstock.brokers.nats.local.watch import begin_watching
from penstock.errors import PenstockError


def main(folder: Path, pid: int) -> None:
    state = read_state(folder)
    if state is not None:
        with suppress(PenstockError):  # It was moved or removed.
            if not LocalServer(folder).stop_if_abandoned():
                begin_watching(folder)
    # One of a folder that is gone, in whose place there may be another by now.
    if (state is None or state.pid != pid) and server.is_server(pid, config_file(folder)):
        server.stop(pid)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
