"""Builds .venv from the lock, with nothing but Python 3.11 or newer.

Only the standard library is used. A machine whose Python refuses installs (PEP 668) or has no
ensurepip is served too: the installer goes into .boot, everything else into .venv.
"""

import sys

# Before all else, and in words that any Python 3 can read: an older one fails below in ways that
# tell nobody why.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "setup: Penstock needs Python 3.11 or newer, and {} is {}.{}. Name another one, as in\n"
        "    make setup PYTHON=python3.12".format(sys.executable, *sys.version_info)
    )

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOT = ROOT / ".boot"
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / ".installed"
INPUTS = ["requirements.lock", "requirements-boot.lock", "pyproject.toml"]
# What each process of a pipeline imports. Left to them, six compile it side by side at first.
COMPILED = [
    *("pandas", "deltalake", "pyspark.worker"),
    "pyspark.sql.streaming.python_streaming_source_runner",
    *("penstock.cli.jobs.pipeline", "penstock.spark.jobs.pipeline", "penstock.spark.jobs.runner"),
]
# How much the environment and the installer's copies take, roughly.
NEEDED = "4 GB"
FULL = ("No space left on device", "os error 28", "[Errno 28]", "Disk quota exceeded")


class StepError(Exception):
    """A step that did not work, and why."""


def main() -> None:
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted and PYTHON.exists():
        return
    began = time.monotonic()
    step("1/3", "fetching the installer into .boot")
    uv = installer()
    step("2/3", "installing the locked packages into .venv, some minutes the first time")
    run(*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(VENV))
    install = [*uv, "pip", "install", "--python", str(PYTHON)]
    # Two packages come as sources; what builds them is locked as well.
    locks = ["-r", "requirements.lock", "--build-constraints", "requirements-boot.lock"]
    run(*install, "--require-hashes", *locks)
    step("3/3", "installing penstock itself")
    run(*install, "--quiet", "--no-deps", "--no-build-isolation", "--editable", ".")
    run(str(PYTHON), "-c", f"import {', '.join(COMPILED)}")
    STAMP.write_text(wanted)
    step("done", f"in {time.monotonic() - began:.0f} s")


def fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode() + str(ROOT).encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def installer() -> list[str]:
    """uv, by its locked hash. Its environment is prepared for `run`."""
    pip = pip_command()
    shutil.rmtree(BOOT / "uv", ignore_errors=True)
    run(
        *pip,
        *("install", "--quiet", "--disable-pip-version-check", "--no-warn-script-location"),
        "--root-user-action=ignore",
        *("--require-hashes", "--target", str(BOOT / "uv"), "-r", "requirements-boot.lock"),
    )
    os.environ["PYTHONPATH"] = str(BOOT / "uv")
    # Machines behind a company's proxy trust its certificate in the system's store.
    os.environ.setdefault("UV_SYSTEM_CERTS", "1")
    return [sys.executable, "-m", "uv"]


def pip_command() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    try:
        run(sys.executable, "-m", "venv", "--clear", str(BOOT / "venv"))
    except StepError as error:
        if is_full(str(error)):
            raise
        raise StepError(
            "This Python has neither pip nor venv. Install one of them, for example\n"
            "    apt-get install python3-pip\n"
            "and run make again."
        ) from None
    return [str(BOOT / "venv" / PYTHON.relative_to(VENV)), "-m", "pip"]


def run(*command: str) -> None:
    """Quietly: what it says matters when it fails, and then its end does."""
    with Waiting():
        ran = subprocess.run(
            command, cwd=ROOT, check=False, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    if ran.returncode:
        said = ran.stdout.strip().splitlines()
        name = " ".join(command[:4])
        raise StepError("\n".join([*said[-15:], f"{name} … ended with {ran.returncode}"]))


class Waiting:
    """Shows on a terminal that time passes."""

    def __enter__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        if sys.stdout.isatty():
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
            print("\r\033[K", end="", flush=True)

    def _show(self) -> None:
        began = time.monotonic()
        while not self._over.wait(1.0):
            print(f"\r  {time.monotonic() - began:.0f} s", end="", flush=True)


def step(count: str, what: str) -> None:
    print(f"setup {count}: {what}", flush=True)


def is_full(text: str) -> bool:
    return any(words in text for words in FULL)


def no_space() -> str:
    cache = Path(os.environ.get("UV_CACHE_DIR") or Path.home() / ".cache")
    free = [f"    {path}: {_free(path)}" for path in (ROOT, cache, Path(tempfile.gettempdir()))]
    return (
        f"setup failed: no space left. About {NEEDED} are needed; free are\n"
        + "\n".join(dict.fromkeys(free))
        + "\nMake room (`make clean` removes what was built here) and run make again."
    )


def _free(path: Path) -> str:
    while not path.exists():
        path = path.parent
    return f"{shutil.disk_usage(path).free / 2**30:.1f} GB"


def guarded(work: Callable[[], None]) -> None:
    """Whatever goes wrong is told in words, without a traceback."""
    try:
        work()
    except KeyboardInterrupt:
        print("\nsetup stopped; make takes it up again.", flush=True)
        sys.exit(130)
    except (StepError, OSError) as error:
        if is_full(str(error)) or getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT):
            sys.exit(no_space())
        sys.exit(f"setup failed: {error}")


if __name__ == "__main__":
    guarded(main)
