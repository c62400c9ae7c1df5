"""A relay in a process of its own, which ends as a power cut would at the step it is told to.

python -m tests.support.relaying DATABASE BROKER STEP [TIMES]
"""

import asyncio
import os
import signal
import sys

from penstock import PubSub
from penstock.transactional import Database, Relay

LEASE = 0.5


async def main(database_url: str, broker_url: str, step: str, times: str = "1") -> None:
    left = int(times)

    def checkpoint(name: str) -> None:
        nonlocal left
        left -= name == step
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    options = {"batch": 10, "lease": LEASE, "poll": 0.02, "checkpoint": checkpoint}
    async with (
        PubSub(broker_url) as pubsub,
        Database(database_url) as database,
        Relay(database, pubsub, **options),
    ):
        print("relaying", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
