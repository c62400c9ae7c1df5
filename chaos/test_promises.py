"""What docs/promises.md says, under fire: producers and consumers in processes of their own, and
servers and processes that are killed or stand still and connections that are cut, at random, for
minutes.

`PROMISES_MINUTES` says how long (10). Prints how many messages were acked to their producers, and
of these how many are missing, doubled (stored twice, or handled again after they were done), out of
their key's order, and how many calls or processes hung.

A server that is alone writes down what was acked a moment after it has confirmed it. When it is
killed in between it delivers those again, which nobody can help: they are counted as forgotten.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests.support.brokers import stored
from tests.support.servers import NatsCluster, NatsServer

from penstock import PubSub
from penstock.testing.faults import faulty_proxy

MINUTES = float(os.environ.get("PROMISES_MINUTES", "10"))
# What was under way when the last fault was over has so long to arrive.
SETTLES_WITHIN = 90
# Nanoseconds before its end in which a lone server may confirm an ack and not keep it: nats-py,
# acking one by one, lost what it was told 0.05 s before, and never what it was told 0.5 s before.
FORGETS = 5 * 10**8
# A confirmation may be read and written down a moment after the server is gone.
LATE = 10**8
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

    def lines(self) -> list[tuple[int, str, str]]:
        text = self.diary.read_text() if self.diary.exists() else ""
        return [(int(at), what, who) for at, what, who in map(str.split, text.splitlines())]


class Faults:
    """Something goes wrong every few seconds."""

    def __init__(self, servers, proxy, workers, mend) -> None:
        self._servers, self._proxy, self._workers, self._mend = servers, proxy, workers, mend
        self.counts: dict[str, int] = defaultdict(int)
        self.kills: list[tuple[int, int]] = []

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
        began = time.monotonic_ns()
        await asyncio.to_thread(victim.kill)
        self.kills.append((began, time.monotonic_ns()))
        await asyncio.sleep(random.uniform(0, 3))
        await asyncio.to_thread(victim.start)
        await asyncio.to_thread(self._mend)

    async def kill_worker(self) -> None:
        self.counts["processes killed"] += 1
        await asyncio.to_thread(random.choice(self._workers).kill)

    async def stop_worker(self) -> None:
        """It stands still, perhaps for longer than messages are lent, and knows nothing of it."""
        self.counts["processes stopped"] += 1
        process = random.choice(self._workers).process
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(random.uniform(0, 12))
        process.send_signal(signal.SIGCONT)

    async def cut(self) -> None:
        self.counts["cuts"] += 1
        self._proxy.cut()

    async def freeze(self) -> None:
        self.counts["freezes"] += 1
        self._proxy.freeze()
        await asyncio.sleep(random.uniform(0, 3))
        self._proxy.thaw()


def count(workers, records, hung, forgetful):
    """What became of the messages, from the diaries and the topic's log. `forgetful`: when servers
    were killed that had nobody to remember for them."""
    place = {record.data.decode(): record for record in records}
    lines = sorted(line for worker in workers for line in worker.lines())
    acked = {who for _, what, who in lines if what == "acked"}
    failed = [who for _, what, who in lines if what.startswith("failed")]
    latest: dict[str | None, int] = defaultdict(int)
    begun, done, doubled, disorder, forgotten = set(), {}, [], [], []
    for at, what, who in lines:
        if what == "done":
            done[who] = at
        elif what == "begun":
            begun.add(who)
            if who in done:
                since = done[who]
                if any(began - FORGETS < since < ended + LATE for began, ended in forgetful):
                    forgotten.append(who)
                    continue
                doubled.append(f"{who} was done {_distance(since, forgetful)}")
            record = place[who]
            if record.sequence < latest[record.ordering_key]:
                disorder.append(who)
            latest[record.ordering_key] = max(latest[record.ordering_key], record.sequence)
    twice = len(records) - len(place)
    return (
        {
            "acked": len(acked),
            "missing": len(acked - begun) + len(acked - place.keys()),
            "doubled": len(doubled) + twice,
            "out of order": len(disorder),
            "hung": hung + len(failed),
        },
        len(forgotten),
        doubled,
    )


def _distance(moment, kills):
    """How far a moment is from the nearest end of a server, which says whose fault it may be."""
    near = min((abs(moment - end), began, end) for began, end in kills) if kills else None
    if near is None:
        return "while no server was killed"
    _, began, end = near
    return f"{(began - moment) / 1e9:.3f} s before a kill that took {(end - began) / 1e9:.3f} s"


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
        faults = Faults(servers, proxy, workers, mend)
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
    alone = faults.kills if len(servers) == 1 else []
    counts, forgotten, doubled = count(workers, records, hung, alone)
    told = {**counts, **faults.counts, "forgotten by a killed server": forgotten}
    with capsys.disabled():
        print("\n" + ", ".join(f"{what} {n:,}" for what, n in told.items()))
    assert counts.pop("acked") > 0
    assert not any(counts.values()), (counts, doubled)


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
