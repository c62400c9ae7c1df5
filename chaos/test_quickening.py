"""Spark's classes kept in a file, by a real JVM, and used by the next."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1800)
SESSION = """
from pathlib import Path
from penstock.spark import session

spark = session("quick", "local[2]", log_level="ERROR")
maps = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
print([line.split()[-1] for line in maps.splitlines() if line.endswith(".jsa")])
print(spark.range(1000).count())
"""


def run(folder: Path, *words: str) -> str:
    """With a temporary folder of its own, and so without what was kept before."""
    ran = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_a_session_that_starts_after_quicken_uses_the_classes_that_it_kept(tmp_path):
    folder = tmp_path / "some where"
    folder.mkdir()
    run(folder, "-c", "from penstock.cli.main import main; main()", "pipeline", "quicken")
    [file] = folder.glob("penstock-spark-*/classes-*.jsa")
    said = run(folder, "-c", SESSION)
    assert str(file.name) in said
    assert "1000" in said
    assert not list(file.parent.glob("classes-*/"))
