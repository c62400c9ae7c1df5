"""The examples and the documentation's code run, and print what they say they print."""

import ast
import inspect
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import PubSub
from penstock.testing import VirtualClock

ROOT = Path(__file__).parents[2]
PRINTING = [p for p in sorted((ROOT / "examples").glob("*.py")) if "# prints:" in p.read_text()]
PAGES = [p for p in sorted(ROOT.glob("docs/*.md")) if "```python" in p.read_text()]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        check=False,
    )


@pytest.mark.parametrize("path", PRINTING, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path):
    expected = [line[2:] for line in path.read_text().split("# prints:\n")[1].splitlines()]
    ran = python(str(path))
    assert (ran.stdout.splitlines(), ran.stderr, ran.returncode) == (expected, "", 0)


def test_every_example_is_tested():
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    others = {"graceful_shutdown", "shop", "demo", "order_service", "test_order_service"}
    others.add("bridge_mailer")  # at the other end of bridge_accounts
    assert names == {path.stem for path in PRINTING} | others


def test_the_order_service_is_thirty_lines_and_its_test_eight():
    service, test = (
        ROOT / "examples" / name for name in ("order_service.py", "test_order_service.py")
    )
    assert len(service.read_text().splitlines()) <= 30
    assert len([line for line in test.read_text().splitlines() if line]) <= 8
    words = (
        "-o",
        "penstock_virtual_time=true",
        "-o",
        "pythonpath=examples",
        "-p",
        "no:cacheprovider",
    )
    ran = python("-m", "pytest", "-q", *words, "examples/test_order_service.py")
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout


def test_graceful_shutdown_finishes_what_is_in_flight_on_sigterm():
    program = subprocess.Popen(
        [sys.executable, "-W", "error", "examples/graceful_shutdown.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGTERM)
    out, err = program.communicate(timeout=240)
    assert out == "stopping\nclean: True; finished and left: 100\n"
    assert (err, program.returncode) == ("", 0)


@pytest.mark.timeout(900)
def test_the_demo_writes_down_every_sample_and_leaves_nothing_behind(tmp_path):
    ran = subprocess.run(
        [sys.executable, "examples/demo.py"],
        capture_output=True,
        text=True,
        timeout=800,
        cwd=ROOT,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "warm and sunny" in ran.stdout
    assert ran.stdout.count(" done ") == len(list((ROOT / "examples/media").glob("*.*"))) - 1
    assert not list(tmp_path.glob("penstock-demo-*"))
    left = subprocess.run(["/bin/ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(tmp_path) not in left.stdout


def test_the_shop_delivers_everything():
    ran = python("examples/shop.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"left in the backlog +0\n", ran.stdout)
    assert re.search(r"out of order +0\n", ran.stdout)


def test_the_readme_program_runs_as_it_stands(tmp_path):
    program = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    script = tmp_path / "readme.py"
    script.write_text(program)
    ran = python(str(script))
    assert (ran.stdout, ran.stderr) == ("a book {'customer': 'ann'}\n", "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_the_code_of_a_page_runs(page, capsys, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    async with PubSub(clock=VirtualClock()) as pubsub:
        topic = await pubsub.topic("orders").create()
        names = {"pubsub": pubsub, "topic": topic, "__name__": "page"}
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            if "asyncio.run(" in block:  # A whole program.
                ran = python("-c", block)
                assert (ran.stdout, ran.stderr, ran.returncode) == ("", "", 0)
                continue
            code = compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, names)  # noqa: S307
            if inspect.iscoroutine(result):
                await result
    scenario = names.get("scenario")
    if callable(scenario):
        await scenario()
    if page.stem == "filters":
        shown = re.findall(r"```\n(Filter does.*?)```", page.read_text(), re.DOTALL)[0]
        assert capsys.readouterr().out == shown
