"""Google's client for Node, where there is Node; what it does is in node/*.test.cjs."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.emulator import EmulatorInThread

HERE = Path(__file__).parent / "node"
NODE, NPM = shutil.which("node"), shutil.which("npm")


@pytest.fixture(scope="module")
def modules():
    """The packages of the lock, installed once for each state of it."""
    if NODE is None or NPM is None:
        pytest.skip("Node is not installed")
    lock = (HERE / "package-lock.json").read_bytes()
    folder = Path(sys.prefix) / f"node-clients-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not folder.exists():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        making.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, making)
        command = [NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=making, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(making)
            pytest.skip(f"npm cannot install Google's client: {done.stderr.strip()[-300:]}")
        making.rename(folder)
    return folder / "node_modules"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", ["clients", "samples"])
def test_google_s_client_for_node_is_served(modules, program):
    with EmulatorInThread(project="project-one") as emulator:
        environ = {
            **os.environ,
            "PUBSUB_EMULATOR_HOST": emulator.address,
            "NODE_PATH": str(modules),
            # Or it looks for Google's machines in the network.
            "METADATA_SERVER_DETECTION": "none",
        }
        command = [str(NODE), "--test", str(HERE / f"{program}.test.cjs")]
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=240, check=False
        )
    assert done.returncode == 0, done.stdout
