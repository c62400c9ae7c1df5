"""Resolves requirements.lock and requirements-boot.lock for every platform, with hashes.

The files name packages and hashes only: which index serves them is the reader's business.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILE = [
    *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--upgrade"),
    *("--generate-hashes", "--no-annotate", "--python-version", "3.11"),
    *("--custom-compile-command", "make lock"),
]


def resolve(output: str, *what: str, stdin: str = "") -> None:
    print(f"lock: {output}", flush=True)
    subprocess.run(
        [*COMPILE, *what, "--output-file", output], cwd=ROOT, check=True, input=stdin, text=True
    )


if __name__ == "__main__":
    resolve("requirements.lock", "pyproject.toml", "--all-extras", "--group", "dev")
    resolve("requirements-boot.lock", "-", stdin="setuptools\nuv\nwheel\n")
