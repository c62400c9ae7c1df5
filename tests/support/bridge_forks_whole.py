"""A whole bridge, started, and then a fork of its process that uses it, as servers do.

Prints a line for each side that could; run with the addresses of the broker and the database.
"""

import asyncio
import os
import sys

from penstock import Bridge


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def use(bridge: Bridge, who: str) -> None:
    async with asyncio.timeout(60):
        health = await bridge.health_check(skip_cache=True)
        result = await bridge.publish(event_type="user.created", payload={"id": 1})
        assert bridge.outbox is not None and bridge.inbox is not None
        while (await bridge.outbox.status()).pending:
            await asyncio.sleep(0.02)
        rows = {row.event_id: row.status for row in await bridge.outbox.rows()}
        received = (await bridge.inbox.status()).received
    say(f"{who} {health['healthy']} {health['errors']} {rows[result.event_id]} {received}")


async def parent(broker: str, database: str) -> None:
    bridge = Bridge(
        "api", "worker", url=broker, database_url=database, use_outbox=True, use_inbox=True
    )
    async with bridge:
        await use(bridge, "parent")
        child = os.fork()
        if child == 0:
            # The loop of the parent is not ours, even though we are inside of it.
            asyncio._set_running_loop(None)
            asyncio.run(in_child(bridge))
            os._exit(0)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        say(f"child ended {os.waitstatus_to_exitcode(status)}")
        # What the parent has open was not touched by it.
        await use(bridge, "parent")


async def in_child(bridge: Bridge) -> None:
    assert bridge.inbox is None
    await use(bridge, "child")
    await bridge.aclose()


if __name__ == "__main__":
    asyncio.run(parent(*sys.argv[1:]))
