"""The command line, as a person types it."""

import re
import subprocess
import sys
from pathlib import Path

PENSTOCK = Path(sys.executable).parent / "penstock"


def penstock(*words: str) -> tuple[int, str]:
    ran = subprocess.run(
        [PENSTOCK, *words], capture_output=True, text=True, timeout=30, check=False
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_a_server_can_be_started_looked_at_and_stopped(tmp_path):
    folder = str(tmp_path / "data")
    assert penstock("server", "status", folder) == (1, f"Not running: {folder}\n")
    assert penstock("server", "stop", folder) == (0, "It was not running.\n")
    code, said = penstock("server", "start", folder)
    assert code == 0
    assert "survives a power failure" in said
    process = re.search(r"process (\d+)", said)
    assert process is not None
    assert process[1] in penstock("server", "start", folder)[1]
    code, said = penstock("server", "status", folder)
    assert code == 0
    assert process[1] in said
    assert penstock("server", "stop", folder) == (0, "Stopped.\n")
    assert penstock("server", "status", folder)[0] == 1


def test_without_words_it_shows_what_there_is():
    _, said = penstock()
    assert "server" in said
    _, said = penstock("server")
    for command in ("start", "stop", "status"):
        assert command in said
