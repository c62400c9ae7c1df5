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


def test_a_child_of_a_started_bridge_has_a_database_of_its_own_too(nats_server, postgres):
    """On PostgreSQL: SQLite's own rule is that what is open is not carried across a fork."""
    module = "tests.support.bridge_forks_whole"
    ran = subprocess.run(
        [sys.executable, "-m", module, nats_server.url, postgres.new_database()],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "parent True [] sent 0",
        "child True [] sent 0",
        "child ended 0",
        "parent True [] sent 0",
    ], ran.stdout + ran.stderr
