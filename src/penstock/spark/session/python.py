"""The interpreter that Spark starts its Python processes with."""

from __future__ import annotations

import hashlib
import os
import site
import sys
from pathlib import Path

from penstock.spark.session.java import quoted, scratch

# Spark puts an archive of PySpark in front of what is installed, and an archive keeps no compiled
# modules: each process compiles all that it imports, which is two thirds of its start.
_SHIM = """\
#!/bin/sh
kept=
IFS=:
set -f
for place in $PYTHONPATH; do
  case "$place" in
    */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
    *) kept="$kept${{kept:+:}}$place" ;;
  esac
done
PYTHONPATH=$kept exec {python} "$@"
"""


def interpreter(*, one_machine: bool) -> str:
    """This one, with the PySpark that is installed in it. For the machines of a cluster its name,
    which they find in their own `PATH`: Spark takes only the same version."""
    if one_machine:
        return str(_shimmed(sys.executable)) if _is_installed() else sys.executable
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return name if Path(sys.executable).with_name(name).exists() else sys.executable


def _is_installed() -> bool:
    """Whether the PySpark of this process is one that others find without being told."""
    import pyspark

    return str(Path(pyspark.__file__).parents[1]) in site.getsitepackages()


def _shimmed(python: str) -> Path:
    which = hashlib.sha256(python.encode()).hexdigest()[:12]
    folder = scratch() / f"python-{which}"
    folder.mkdir(mode=0o700, exist_ok=True)
    fresh = folder / f"python.{os.getpid()}"
    fresh.write_text(_SHIM.format(python=quoted(python)))
    fresh.chmod(0o700)
    # In one step: others may be starting theirs.
    return fresh.replace(folder / "python3")
