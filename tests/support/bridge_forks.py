"""A program that uses a connection, forks as servers do, and uses it on both sides.

Prints `parent|child NAME ok` for each that could; run with the server's address.
"""

import asyncio
import os
import sys

from penstock.bridge.connection import BridgeConnection, ConnectionState, opener


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def use(connection: BridgeConnection, who: str) -> None:
    broker = await connection.broker()
    await broker.ping()
    topics = await broker.admin.list_topics()
    say(f"{who} {os.getpid()} {len(topics)} {connection.state.value}")


async def parent(connection: BridgeConnection) -> None:
    """Fork in the middle of it, as a server that boots its workers late does."""
    await use(connection, "parent")
    for name in ("one", "two"):
        child = os.fork()
        if child == 0:
            assert connection.state is ConnectionState.DISCONNECTED
            # The loop of the parent is not ours, even though we are inside of it.
            asyncio._set_running_loop(None)
            asyncio.run(in_child(connection, name))
            os._exit(0)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        say(f"child ended {os.waitstatus_to_exitcode(status)}")
        # The parent's own connection was not touched by it.
        await use(connection, "parent")
        assert connection.reconnects == 0
    await connection.aclose()


async def in_child(connection: BridgeConnection, name: str) -> None:
    await use(connection, f"child-{name}")
    await connection.reconnect()
    await use(connection, f"child-{name}")
    await connection.aclose()


if __name__ == "__main__":
    asyncio.run(parent(BridgeConnection(opener(sys.argv[1], "events", "letters"))))
