"""Spark's classes kept in a file, by a real JVM, and used by the next."""

import os
import shutil
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


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The classes, kept in a temporary folder of their own."""
    folder = tmp_path_factory.mktemp("some where")
    run(folder, "-c", "from penstock.cli.main import main; main()", "pipeline", "quicken")
    [kept] = folder.glob("penstock-spark-*/classes-*.jsa")
    assert not list(kept.parent.glob("classes-*/"))
    return kept


def test_a_session_that_starts_after_quicken_uses_the_classes_that_it_kept(file):
    said = run(file.parents[1], "-c", SESSION)
    assert file.name in said
    assert "1000" in said


@pytest.mark.parametrize("damage", ["cut", "garbled"])
def test_a_session_whose_file_of_classes_is_damaged_starts_without_it(tmp_path, file, damage):
    folder = tmp_path / file.parent.name
    folder.mkdir(mode=0o700)
    damaged = folder / file.name
    shutil.copyfile(file, damaged)
    size = damaged.stat().st_size
    with damaged.open("r+b") as written:
        if damage == "cut":
            written.truncate(size // 2)
        for tenth in range(1, 10) if damage == "garbled" else ():
            written.seek(size * tenth // 10)
            written.write(os.urandom(2**16))
    said = run(tmp_path, "-c", SESSION)
    assert file.name not in said
    assert "1000" in said
