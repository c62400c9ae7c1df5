"""docs/app.md, followed to the letter: its commands print what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import Running

ROOT = Path(__file__).parents[2]
PENSTOCK = str(Path(sys.executable).with_name("penstock"))


def commands():
    """Each command of the page with the lines it prints."""
    page = (ROOT / "docs/app.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    for entry in "\n".join(blocks).split("$ ")[1:]:
        command, *printed = entry.splitlines()
        yield command, [line for line in printed if line]


def plain(line):
    """Without what differs from run to run."""
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|:\d+/", "…", line).strip()


@pytest.mark.timeout(300)
def test_the_commands_of_the_page_print_what_it_says(tmp_path):
    (export, _), (run, running), *others = commands()
    assert export == "export PENSTOCK_URL=local://./data"
    assert run.startswith("penstock run order_service:app --workers 2")
    (tmp_path / "order_service.py").write_text((ROOT / "examples/order_service.py").read_text())
    url = f"local://{tmp_path}/data"
    # Ports that are free, not those a reader has.
    words = re.sub(r"-port \d+", "-port 0", run).split()[1:]
    with Running(tmp_path, *words, "--url", url) as app:
        app.wait_for(lambda said: said.count("Receiving from billing") == 2)
        for line in running:
            assert plain(line.replace("INFO ", "")) in plain_text(app.said)
        for command, printed in others:
            environment = {**os.environ, "PENSTOCK_URL": url, "COLUMNS": "100"}
            ran = subprocess.run(
                ["/bin/bash", "-c", command.replace("penstock ", f"{PENSTOCK} ", 1)],
                capture_output=True,
                text=True,
                timeout=120,
                cwd=tmp_path,
                env=environment,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
            for line in printed:
                assert plain(line) in plain_text(ran.stdout), (command, ran.stdout)
        assert app.end() == 0


def plain_text(said):
    return "\n".join(plain(line) for line in said.splitlines())
