"""Builds .venv from the lock, with nothing but Python 3.11 or newer.

Only the standard library is used. A machine whose Python refuses installs (PEP 668) or has no
ensurepip is served too: the installer goes into .boot, everything else into .venv.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOT = ROOT / ".boot"
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / ".installed"
INPUTS = ["requirements.lock", "requirements-boot.lock", "pyproject.toml"]


def main() -> None:
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted and PYTHON.exists():
        return
    began = time.monotonic()
    step("1/3", "fetching the installer into .boot")
    uv = installer()
    step("2/3", "installing the locked packages into .venv")
    run(*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(VENV))
    install = [*uv, "pip", "install", "--python", str(PYTHON)]
    # Two packages come as sources; what builds them is locked as well.
    locks = ["-r", "requirements.lock", "--build-constraints", "requirements-boot.lock"]
    run(*install, "--require-hashes", *locks)
    step("3/3", "installing penstock itself")
    run(*install, "--quiet", "--no-deps", "--no-build-isolation", "--editable", ".")
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
    except subprocess.CalledProcessError:
        sys.exit(
            "This Python has neither pip nor venv. Install one of them, for example\n"
            "    apt-get install python3-pip\n"
            "and run make again."
        )
    return [str(BOOT / "venv" / PYTHON.relative_to(VENV)), "-m", "pip"]


def run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def step(count: str, what: str) -> None:
    print(f"setup {count}: {what}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"setup failed: {' '.join(map(str, error.cmd[:6]))} … ended with {error.returncode}"
        )
