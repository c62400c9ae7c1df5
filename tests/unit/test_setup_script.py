"""What `make` runs first says what is wrong in words, and little else."""

import errno
import importlib.util
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup.py"
OLD = f"""
import runpy, sys
sys.version_info = (3, 9, 2)
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
WAITS = f"""
import runpy, signal, sys
# Whoever runs the tests in the background may have them ignore it, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
script = runpy.run_path({str(SCRIPT)!r}, run_name="script")
wait = "print('installing', flush=True); import time; time.sleep(600)"

def work():
    print("began", flush=True)
    script["run"](sys.executable, "-c", wait)

script["guarded"](work)
"""


@pytest.fixture
def script():
    return runpy.run_path(str(SCRIPT), run_name="script")


def test_an_older_python_is_told_before_anything_is_done(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", OLD], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "needs Python 3.11 or newer" in ran.stderr and "is 3.9" in ran.stderr
    assert "make setup PYTHON=" in ran.stderr and "Traceback" not in ran.stderr


def test_what_a_step_says_is_shown_when_it_fails_and_only_then(script, capfd):
    script["run"](sys.executable, "-c", "print('+ package==1.0')")
    assert capfd.readouterr() == ("", "")
    with pytest.raises(SystemExit) as ended:
        script["guarded"](
            lambda: script["run"](sys.executable, "-c", "print('no such wheel'); exit(2)")
        )
    assert "no such wheel\n" in str(ended.value) and "ended with 2" in str(ended.value)


@pytest.mark.parametrize(
    "words",
    ["error: failed to write: No space left on device (os error 28)", "Disk quota exceeded"],
)
def test_a_full_disk_is_called_that(script, words):
    with pytest.raises(SystemExit) as ended:
        script["guarded"](lambda: script["run"](sys.executable, "-c", f"print({words!r}); exit(1)"))
    told = str(ended.value)
    assert told.startswith("setup failed: no space left.") and "GB" in told


def test_a_disk_that_is_full_for_the_script_itself_is_called_that(script):
    def work():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere")

    with pytest.raises(SystemExit, match="no space left"):
        script["guarded"](work)


def test_interrupting_it_is_quiet():
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "began\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=120)[0] == "\nsetup stopped; make takes it up again.\n"
    assert process.returncode == 130


def test_what_is_compiled_ahead_is_there_to_be_imported(script):
    assert script["COMPILED"]
    assert [name for name in script["COMPILED"] if importlib.util.find_spec(name) is None] == []
