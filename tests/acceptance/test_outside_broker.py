"""A broker from outside: the page's recipe runs as it stands, and what it acknowledged survives."""

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from penstock import PubSub, register_broker

ROOT = Path(__file__).parents[2]
BROKER = ROOT / "examples" / "sqlite_broker.py"


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """In a folder of its own, with nothing but the broker's file beside what is installed."""
    (folder / BROKER.name).write_text(BROKER.read_text())
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=False,
    )


@pytest.mark.timeout(120)
def test_the_recipe_of_the_page_tests_it_and_skips_only_what_it_does_not_claim(tmp_path):
    page = (ROOT / "docs" / "testing.md").read_text()
    [recipe] = [
        block
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if "BrokerConformance" in block
    ]
    (tmp_path / "test_recipe.py").write_text(recipe)
    ran = run(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_recipe.py"], tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed, skipped = map(int, re.findall(r"(\d+) passed, (\d+) skipped", ran.stdout)[0])
    reasons = re.findall(
        r"^SKIPPED \[(\d+)\] \S+ the broker (?:does not claim|claims) ", ran.stdout, re.M
    )
    assert passed > skipped
    assert sum(map(int, reasons)) == skipped


PUBLISHES_AND_DIES = textwrap.dedent("""
    import asyncio, os, signal
    from penstock import PubSub, register_broker
    from sqlite_broker import BROKER

    async def main():
        register_broker("sqlite", BROKER)
        pubsub = PubSub("sqlite://messages.db")
        topic = await pubsub.topic("orders").create()
        await topic.subscription("billing").create()
        for n in range(20):
            await topic.publish_message(b"%d" % n)
            print(n, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())
""")


@pytest.mark.real_time
async def test_what_it_acknowledged_outlives_the_process_that_published_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from sqlite_broker import BROKER as KIND

    ran = run(["-c", PUBLISHES_AND_DIES], tmp_path)
    assert ran.returncode == -signal.SIGKILL
    acknowledged = ran.stdout.split()
    assert len(acknowledged) == 20
    register_broker("sqlite", KIND)
    found = []
    async with PubSub(f"sqlite://{tmp_path}/messages.db") as pubsub:
        async for message in pubsub.subscription("billing"):
            message.ack()
            found.append(message.data.decode())
            if len(found) == 20:
                break
    async with PubSub(f"sqlite://{tmp_path}/messages.db") as pubsub:
        status = await pubsub.subscription("billing").describe()
    assert (found, status.backlog) == (acknowledged, 0)
