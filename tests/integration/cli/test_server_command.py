"""`penstock server`, as a person types it."""

import json
import re
import shlex

from tests.support.processes import command, command_here


def test_a_server_can_be_started_looked_at_and_stopped(tmp_path):
    folder = str(tmp_path / "jürgen grüße" / "data")
    assert command_here("server", "status", folder) == (1, f"Not running: {folder}\n", "")
    ended = command_here("server", "status", folder, "--json")
    assert ended.code == 1 and json.loads(ended.out) == {"folder": folder, "running": False}
    assert command_here("server", "stop", folder) == (0, "It was not running.\n", "")
    # In a process of its own, which the server outlives.
    started = command("server", "start", folder)
    assert started.code == 0
    assert "survives a power failure" in started.said
    process = re.search(r"process (\d+)", started.said)
    assert process is not None
    assert process[1] in command_here("server", "start", folder).said
    code, said, _ = command_here("server", "status", folder)
    assert code == 0
    assert process[1] in said
    told = json.loads(command_here("server", "status", folder, "--json").out)
    assert told["running"] and told["process"] == int(process[1]) and told["port"] > 0
    # What it says can be pasted.
    _, _, hint = started.said.partition("stop it with: penstock ")
    assert command_here(*shlex.split(hint)) == (0, "Stopped.\n", "")
    assert command_here("server", "status", folder).code == 1


def test_without_words_it_shows_what_there_is():
    assert "server" in command().said
    said = command_here("server").said
    for word in ("start", "stop", "status"):
        assert word in said
