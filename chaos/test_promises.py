"""What docs/promises.md says, under fire: producers and consumers in processes of their own, and
servers and processes that are killed or stand still and connections that are cut, at random, for
minutes.

`PROMISES_MINUTES` says how long (10). Prints how many messages were acked to their producers, and
of these how many are missing, doubled (stored twice, or handled again after they were done), out of
their key's order, and how many calls or processes hung.

A server that is alone writes down what was acked a moment after it has confirmed it. When it is
killed in between it delivers those again, which nobody can help: they are counted as forgotten.
Which they are is read from its files while it is dead.

When a promise is broken it says what the diaries have of the messages, and keeps all of them.
"""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests.support.brokers import stored
from tests.support.servers import NatsCluster, NatsServer

from chaos.promise_counts import KeptAcks, Kill, count, read_diary, stories
from chaos.promises import Diary
from penstock import PubSub
from penstock.testing.faults import faulty_proxy

MINUTES = float(os.environ.get("PROMISES_MINUTES", "10"))
# What was under way when the last fault was over has so long to arrive.
SETTLES_WITHIN = 90
ROLES = ("produce", "produce", "consume", "consume")
pytestmark = [pytest.mark.real_time, pytest.mark.timeout(MINUTES * 60 + 600)]


class Worker:
    """A process that is started again whenever it was killed."""

    def __init__(self, role: str, url: str, folder: Path, number: int) -> None:
        self.name = f"{role}-{number}"
        self.diary = folder / f"{self.name}.diary"
        self.output = folder / f"{self.name}.output"
        self._words = [role, url, str(self.diary), self.name]
        self.start()

    def start(self) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "chaos.promises", *self._words],
                stdout=output,
                stderr=output,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.start()

    async def end(self, within: float) -> bool:
        """Ask it to end; False when it had to be killed."""
        self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self.process.wait, within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        return True


class Faults:
    """Something goes wrong every few seconds, and is written down."""

    def __init__(self, servers, proxy, workers, mend, folder) -> None:
        self._servers, self._proxy, self._workers, self._mend = servers, proxy, workers, mend
        self.diary = folder / "faults.diary"
        self._note = Diary(str(self.diary)).note
        self.counts: dict[str, int] = defaultdict(int)
        self.kills: list[Kill] = []

    async def rage(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(random.uniform(1, 6))
            await random.choice(
                [self.kill_server, self.kill_worker, self.stop_worker, self.cut, self.freeze]
            )()

    async def kill_server(self) -> None:
        self.counts["servers killed"] += 1
        victim = random.choice(self._servers)
        self._note("kill", victim.name)
        began = time.monotonic_ns()
        await asyncio.to_thread(victim.kill)
        ended = time.monotonic_ns()
        kept = _kept_acks(victim) if len(self._servers) == 1 else None
        await asyncio.sleep(random.uniform(0, 3))
        self.kills.append(Kill(began, ended, time.monotonic_ns(), kept))
        self._note("start", victim.name)
        await asyncio.to_thread(victim.start)
        await asyncio.to_thread(self._mend)
        self._note("started", victim.name)

    async def kill_worker(self) -> None:
        self.counts["processes killed"] += 1
        victim = random.choice(self._workers)
        self._note("kill", victim.name)
        await asyncio.to_thread(victim.kill)

    async def stop_worker(self) -> None:
        """It stands still, perhaps for longer than messages are lent, and knows nothing of it."""
        self.counts["processes stopped"] += 1
        victim = random.choice(self._workers)
        self._note("stop", victim.name)
        victim.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(random.uniform(0, 12))
        self._note("continue", victim.name)
        victim.process.send_signal(signal.SIGCONT)

    async def cut(self) -> None:
        self.counts["cuts"] += 1
        self._note("cut", "connections")
        self._proxy.cut()

    async def freeze(self) -> None:
        self.counts["freezes"] += 1
        self._note("freeze", "connections")
        self._proxy.freeze()
        await asyncio.sleep(random.uniform(0, 3))
        self._note("thaw", "connections")
        self._proxy.thaw()


def _kept_acks(server):
    """What a server that is not running will know of the acks when it starts."""
    [state] = server.folder.glob("data/jetstream/*/streams/promised/obs/promised-sub/o.dat")
    return KeptAcks.read(state)


async def trial(folder, servers, url_of, mend, capsys):
    port = servers[0].port
    async with faulty_proxy("127.0.0.1", port) as proxy:
        url = url_of(proxy.port)
        async with PubSub(servers[0].url) as pubsub:
            topic = await pubsub.topic("promised").create()
            await topic.subscription(
                "promised-sub",
                ack_deadline=5,
                message_ordering=True,
                enable_exactly_once_delivery=True,
            ).create()
        workers = [Worker(role, url, folder, at) for at, role in enumerate(ROLES)]
        faults = Faults(servers, proxy, workers, mend, folder)
        try:
            await faults.rage(MINUTES * 60)
            producers = [worker for worker in workers if worker.name.startswith("produce")]
            hung = [await worker.end(120) for worker in producers].count(False)
            async with PubSub(servers[0].url) as pubsub:
                hung += await _backlog(pubsub)
                records = await stored(pubsub, "promised")
            consumers = [worker for worker in workers if worker not in producers]
            hung += [await worker.end(30) for worker in consumers].count(False)
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.wait()
    lines = sorted(
        line
        for diary in (faults.diary, *(worker.diary for worker in workers))
        for line in read_diary(diary)
    )
    counts = count(lines, records, faults.kills)
    broken = {
        "missing": len(counts.missing),
        "doubled": len(counts.doubled) + len(counts.stored_twice),
        "out of order": len(counts.out_of_order),
        "hung": hung + len(counts.failed),
    }
    told = {"acked": counts.acked, **broken, **faults.counts}
    told["forgotten by a killed server"] = len(counts.forgotten)
    with capsys.disabled():
        print("\n" + ", ".join(f"{what} {n:,}" for what, n in told.items()))
        if any(broken.values()):
            print(stories(counts, lines, records, faults.kills))
            print("All diaries are in", _kept_diaries(folder))
    assert counts.acked > 0
    assert not any(broken.values()), broken


def _kept_diaries(folder):
    """Where they outlive the folders of later tests."""
    kept = Path(tempfile.mkdtemp(prefix="penstock-promises-"))
    for path in (*folder.glob("*.diary"), *folder.glob("*.output"), *folder.glob("*/log")):
        shutil.copy(path, kept)
    return kept


async def _backlog(pubsub):
    """Wait until all is handled; what is left after that hangs."""
    sub = pubsub.subscription("promised-sub")
    for _ in range(SETTLES_WITHIN * 2):
        left = (await sub.describe()).backlog
        if not left:
            return 0
        await asyncio.sleep(0.5)
    return left


async def test_promises_are_kept_on_one_server(tmp_path, capsys):
    with NatsServer(tmp_path / "nats") as server:
        await trial(
            tmp_path,
            [server],
            lambda port: f"nats://127.0.0.1:{port}?timeout=2",
            lambda: None,
            capsys,
        )


async def test_promises_are_kept_on_three_servers(tmp_path, capsys):
    with NatsCluster(tmp_path / "cluster") as cluster:
        others = ",".join(f"127.0.0.1:{one.port}" for one in cluster.servers[1:])
        await trial(
            tmp_path,
            cluster.servers,
            lambda port: f"nats://127.0.0.1:{port},{others}?timeout=2",
            cluster.wait_until_healthy,
            capsys,
        )
