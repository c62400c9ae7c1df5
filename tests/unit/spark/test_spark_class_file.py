"""The file of classes that a JVM maps into its memory, without a JVM."""

import sys

import pytest

from penstock.errors import FailedPreconditionError
from penstock.spark.session import class_file as kept
from penstock.spark.session.quiet import STACK
from penstock.spark.session.starting import defaults

OPTIONS = "spark.driver.defaultJavaOptions"
# Writes what it was told to, or says why not.
JAVA = f"""#!{sys.executable}
import sys
for word in sys.argv:
    if word.startswith("-XX:SharedArchiveFile=") and "nothing" not in sys.argv[-1]:
        open(word.partition("=")[2], "w").write(sys.argv[-1])
print("An error has occurred\\nThere is no room")
sys.exit("killed" in sys.argv[-1])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    made = tmp_path / "jürgen grüße"
    made.mkdir()
    monkeypatch.setattr(kept, "scratch", lambda: made)
    return made


@pytest.fixture
def java(tmp_path):
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(JAVA)
    (home / "bin" / "java").chmod(0o755)
    return home


def test_a_session_uses_classes_once_they_are_kept():
    assert defaults("local[2]")[OPTIONS] == STACK
    kept.class_file().touch()
    options = defaults("local[2]")[OPTIONS]
    assert options.startswith(STACK)
    assert f'"-XX:SharedArchiveFile={kept.class_file()}"' in options


def test_classes_take_the_place_of_those_that_were_kept_before(folder, java):
    file = kept.class_file()
    file.write_text("those of before")
    file.chmod(0o444)
    kept.write_classes(java, "a.jar:b.jar", folder / "listed", file)
    assert file.read_text() == "a.jar:b.jar"
    assert list(folder.iterdir()) == [file]


@pytest.mark.parametrize("path", ["nothing.jar", "killed.jar"])
def test_a_java_that_keeps_none_says_why_and_leaves_those_of_before(folder, java, path):
    """One that was killed has written a part of them."""
    file = kept.class_file()
    file.write_text("those of before")
    with pytest.raises(FailedPreconditionError, match="There is no room"):
        kept.write_classes(java, path, folder / "listed", file)
    assert file.read_text() == "those of before"
    assert list(folder.iterdir()) == [file]
