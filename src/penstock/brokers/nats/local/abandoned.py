"""`python -m penstock.brokers.nats.local.abandoned DIR`: stops a server that nobody uses."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from penstock.brokers.nats.local.folder import LocalServer
from penstock.brokers.nats.local.watch import begin_watching
from penstock.errors import PenstockError


def main(folder: Path) -> None:
    with suppress(PenstockError):  # It was moved or removed.
        if not LocalServer(folder).stop_if_abandoned():
            begin_watching(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
