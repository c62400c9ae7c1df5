"""Real forks with a real server."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real_time


def test_a_forked_child_gets_a_connection_of_its_own_and_the_parent_keeps_its(nats_server):
    program = [sys.executable, "-m", "tests.support.bridge_forks", nats_server.url]
    ran = subprocess.run(
        program,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = [re.sub(r" \d+ \d+ ", " ", line) for line in ran.stdout.splitlines()]
    child = ["child-{} connected", "child-{} connected", "child ended 0", "parent connected"]
    assert said == [
        "parent connected",
        *(line.format("one") for line in child),
        *(line.format("two") for line in child),
    ], ran.stdout + ran.stderr
    pids = set(re.findall(r"child-\w+ (\d+)", ran.stdout))
    assert len(pids) == 2
