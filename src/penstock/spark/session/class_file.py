"""Spark's classes as a JVM has them once they are loaded, kept in a file. A driver that maps it
into its memory need not find, check and link thousands of them before its first batch, which is
half of the processor's time that its JVM takes until then."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from penstock.errors import FailedPreconditionError
from penstock.spark.session.java import scratch

# A JVM that the file does not fit, because another Java wrote it, starts as if it was not there.
# One whose file was damaged would die before it said a word; to see that takes 0.05 s.
_CAREFULLY = "-XX:+VerifySharedSpaces -Xlog:cds=off -Xlog:cds+dynamic=off"


def class_file() -> Path:
    """Where the classes of the Spark that is installed here are kept, if they are."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    which = f"{jars} {jars.stat().st_mtime_ns}"
    return scratch() / f"classes-{hashlib.sha256(which.encode()).hexdigest()[:12]}.jsa"


def class_options() -> str:
    """For a JVM that is to use the file; none when it is not there."""
    file = class_file()
    return f'"-XX:SharedArchiveFile={file}" {_CAREFULLY}' if file.is_file() else ""


def listing_option(listed: Path) -> str:
    """For a JVM that is to say, until it ends, which classes it loads."""
    return f'"-XX:DumpLoadedClassList={listed}"'


def write_classes(java: Path, path: str, listed: Path, file: Path) -> None:
    """Write the file: the classes that were `listed` by a JVM whose class path was `path`."""
    with tempfile.TemporaryDirectory(prefix="classes-", dir=file.parent) as folder:
        fresh = Path(folder, file.name)
        ran = subprocess.run(  # noqa: S603
            [
                *(str(java / "bin" / "java"), "-Xshare:dump", "-Xlog:disable"),
                *(f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={fresh}"),
                *("-cp", path),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        # One that was killed leaves a part of it.
        if ran.returncode or not fresh.is_file():
            said = (ran.stderr + ran.stdout).strip().splitlines() or [f"it ended {ran.returncode}"]
            raise FailedPreconditionError(f"This Java keeps no classes in a file: {said[-1]}")
        # On disk before it has its name: no JVM starts with half of it, and it is not looked at
        # again. In one step, because others may be starting theirs.
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        fresh.replace(file)
