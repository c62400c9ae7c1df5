"""Who sends what it commits is killed at each step between commit and mark: nothing is lost,
nothing comes twice, and what was not committed never comes."""

import asyncio
import signal
import subprocess
import sys

import pytest
from tests.support.outbox_scenes import ids, outbox_on

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(600)]
STEPS = ["added", "committed", "claimed", "publishing", "published", "before-mark", "marking"]
# Prints the name of each group of messages that was committed.
WRITER = """
import asyncio, os, signal, sys
from penstock import Draft, PubSub
from penstock.transactional import Database, Relay

database_url, broker_url, step = sys.argv[1:]

def checkpoint(name):
    if name == step:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with PubSub(broker_url) as pubsub, Database(database_url) as database:
        relay = Relay(database, pubsub, lease=2.0, checkpoint=checkpoint)
        outbox = relay.held_outbox()
        for part in "abc":
            name = f"{step}-{part}"
            drafts = [Draft.of(b"x", message_id=f"{name}-{n}") for n in range(50)]
            async with database.transaction() as connection:
                await outbox.add_new(connection, "orders", drafts)
                if part == "c":
                    checkpoint("added")
            print(name, flush=True)
        checkpoint("committed")
        await relay.send_held()

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/app.db"
    return request.getfixturevalue("postgres").new_database()


async def test_who_is_killed_between_commit_and_mark_loses_and_repeats_nothing(url, tmp_path):
    broker = f"local://{tmp_path}/broker"
    committed: list[str] = []
    async with outbox_on(url, broker) as scene:
        for step in STEPS:
            ran = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", WRITER, url, broker, step],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            assert ran.returncode == -signal.SIGKILL, step
            committed += ran.stdout.split()
        assert len(committed) == 3 * len(STEPS) - 1
        async with scene.relay(lease=2.0):
            await scene.drained()
        stored = sorted(ids(await scene.stored()))
        assert stored == sorted(f"{name}-{n}" for name in committed for n in range(50))
