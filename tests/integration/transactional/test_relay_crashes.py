"""Processes that are killed, and brokers that die: nothing is lost, nothing comes twice."""

import asyncio
import random
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import select

from penstock import Draft
from penstock.transactional.outbox_table import table
from tests.support.outbox_scenes import drafts, ids, outbox_on, until
from tests.support.relaying import LEASE
from tests.support.servers import NatsServer

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

STEPS = ["claimed", "publishing", "published", "before-mark", "marking", "marked"]
ROOT = Path(__file__).parents[3]


@contextmanager
def relay_process(*arguments: str):
    command = [sys.executable, "-m", "tests.support.relaying", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def ended(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, 30)


def assert_once_and_in_order(records, keys, count, keyless):
    arrived = ids(records)
    assert len(arrived) == len(set(arrived)), "something came twice"
    for key in keys:
        mine = [i for i in arrived if i.startswith(f"{key}-")]
        assert mine == [f"{key}-{n}" for n in range(count)]
    assert sorted(i for i in arrived if i.startswith("m-")) == sorted(
        f"m-{n}" for n in range(keyless)
    )


async def test_a_relay_killed_at_any_step_loses_and_repeats_nothing(url, tmp_path):
    broker = f"local://{tmp_path}/broker"
    async with outbox_on(url, broker) as scene:
        for turn, step in enumerate(STEPS):
            for key in ("a", "b"):
                await scene.add(*drafts(4, key, start=turn * 4))
            await scene.add(*drafts(8, start=turn * 8))
            # The second time, so that rows with and without a key are both hit over the turns.
            with relay_process(url, broker, step, str(1 + turn % 2)) as process:
                assert await ended(process) == -signal.SIGKILL, step
            assert await scene.outbox.pending() > 0 or step == "marked"
        async with scene.relay(lease=LEASE):
            await scene.drained()
        assert_once_and_in_order(await scene.stored(), "ab", 24, 48)
        assert (await scene.outbox.status()).dead == 0


async def test_relays_killed_at_random_while_others_write_lose_and_repeat_nothing(url, tmp_path):
    broker = f"local://{tmp_path}/broker"
    chance = random.Random(7)
    async with outbox_on(url, broker) as scene:

        async def write():
            for n in range(60):
                for key in ("a", "b"):
                    await scene.add(*drafts(1, key, start=n))
                await scene.add(*drafts(2, start=n * 2))
                await asyncio.sleep(0.02)

        writing = asyncio.create_task(write())
        for _ in range(3):
            with relay_process(url, broker, "never") as one, relay_process(url, broker, "never"):
                await asyncio.to_thread(one.stdout.readline)
                await asyncio.sleep(chance.random() * 0.3)
        await writing
        async with scene.relay(lease=LEASE):
            await scene.drained()
        assert_once_and_in_order(await scene.stored(), "ab", 60, 120)


async def test_a_writer_killed_before_its_commit_publishes_nothing(url, tmp_path):
    program = (
        "import asyncio, sys\n"
        "from penstock import Draft\n"
        "from penstock.transactional import Database, Outbox\n"
        "async def main():\n"
        "    database = await Database.open(sys.argv[1])\n"
        "    async with database.transaction() as connection:\n"
        "        await Outbox(database).add(connection, 'orders', [Draft.of(b'no')] * 500)\n"
        "        print('added', flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    async with outbox_on(url) as scene, scene.relay():
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, url, stdout=asyncio.subprocess.PIPE
        )
        assert await writer.stdout.readline() == b"added\n"
        writer.kill()
        await writer.wait()
        await scene.add(Draft.of(b"yes", message_id="yes"))
        await scene.drained()
        assert ids(await scene.stored()) == ["yes"]


async def test_a_broker_that_dies_and_comes_back_gets_everything_once(url, tmp_path):
    with NatsServer(tmp_path, sync=True) as server:
        async with outbox_on(url, server.url) as scene, scene.relay(timeout=1.0):
            await scene.add(*drafts(10, "a"), *drafts(10))
            await scene.drained()
            server.kill()
            await scene.add(*drafts(10, "a", start=10), *drafts(10, start=10))

            async def tried():
                async with scene.database.transaction(reading=True) as connection:
                    failed = select(table.c.id).where(table.c.last_error.is_not(None))
                    return (await connection.execute(failed)).first() is not None

            await until(tried)
            server.start()
            await scene.drained(60)
            assert_once_and_in_order(await scene.stored(), "a", 20, 20)
            assert (await scene.outbox.status()).dead == 0


async def test_a_message_too_large_for_the_server_dies_and_blocks_nothing(url, tmp_path):
    with NatsServer(tmp_path, extra="max_payload: 65536") as server:
        async with outbox_on(url, server.url) as scene, scene.relay():
            large = Draft.of(bytes(100_000), ordering_key="a", message_id="large")
            await scene.add(*drafts(3, "a"), large, *drafts(3, "a", start=3), *drafts(3))
            await scene.drained()
            assert_once_and_in_order(await scene.stored(), "a", 6, 3)
            [dead] = await scene.outbox.dead()
            assert dead.message_id == "large" and "InvalidArgumentError" in dead.reason
