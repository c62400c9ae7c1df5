"""Kill what runs a query, again and again; the sink holds the input, no more and no less."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.nats_scenes import fill, make, stored
from tests.support.servers import NatsServer

TOTAL = 30_000
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def server(tmp_path):
    (tmp_path / "nats").mkdir()
    with NatsServer(tmp_path / "nats") as running:
        # Ids are forgotten at once: only the fence keeps rows from being stored twice.
        make(running.url, "orders")
        make(running.url, "copied", duplicate_window=0.1)
        fill(running.url, "orders", range(TOTAL))
        yield running


class Pipeline:
    def __init__(self, server, folder, master="local[2]"):
        self.output = folder / "output"
        arguments = [master, server.url, "orders", "copied", str(folder / "checkpoint"), str(TOTAL)]
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "chaos.pipeline", *arguments],
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=Path(__file__).parents[1],
            )

    def wait_for_batches(self, count):
        before = self.batches()
        while self.batches() < before + count and self.process.poll() is None:
            time.sleep(0.02)

    def batches(self):
        return sum(line.startswith("batch") for line in self.lines())

    def lines(self):
        return self.output.read_text(errors="replace").splitlines()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Kill driver, JVM and executors at once; Python workers notice that nobody speaks to
        them."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self):
        assert self.process.wait(300) == 0, "\n".join(self.lines()[-30:])


def test_a_driver_killed_in_the_middle_of_batches_loses_and_repeats_nothing(server, tmp_path):
    for _ in range(4):
        with Pipeline(server, tmp_path) as pipeline:
            pipeline.wait_for_batches(random.randint(1, 3))
            time.sleep(random.random() * 0.5)
    with Pipeline(server, tmp_path) as last:
        last.finish()
    assert sorted(map(int, stored(server.url, "copied"))) == list(range(TOTAL))


def executors(pipeline):
    """The executor JVMs of a local cluster; they are in the group of its driver."""
    found = subprocess.run(
        ["ps", "-ewwo", "pid,pgid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [
        int(line.split()[0])
        for line in found
        if "CoarseGrainedExecutorBackend" in line and line.split()[1] == str(pipeline.process.pid)
    ]


def test_an_executor_that_is_killed_is_replaced_and_nothing_is_lost_or_repeated(server, tmp_path):
    with Pipeline(server, tmp_path, "local-cluster[2,1,1024]") as pipeline:
        pipeline.wait_for_batches(2)
        os.kill(executors(pipeline)[0], signal.SIGKILL)
        pipeline.finish()
    assert sorted(map(int, stored(server.url, "copied"))) == list(range(TOTAL))


def test_a_server_killed_under_a_query_is_waited_for(server, tmp_path):
    with Pipeline(server, tmp_path) as pipeline:
        for _ in range(3):
            pipeline.wait_for_batches(2)
            server.kill()
            time.sleep(0.5)
            server.start()
        pipeline.finish()
    assert sorted(map(int, stored(server.url, "copied"))) == list(range(TOTAL))
