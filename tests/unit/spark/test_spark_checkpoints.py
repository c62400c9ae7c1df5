"""One driver at a time goes on from a checkpoint."""

import subprocess
import sys

import pytest

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.spark.jobs import checkpoints
from penstock.spark.jobs.checkpoints import holding_checkpoints

HOLDER = """
import sys
from penstock.spark.jobs.checkpoints import holding_checkpoints
with holding_checkpoints(sys.argv[1], ["metadata"]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_driver_is_refused_until_the_first_is_gone_however_it_ends(tmp_path):
    place = str(tmp_path / "checkpoints")
    command = [sys.executable, "-c", HOLDER, place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(FailedPreconditionError, match="Another driver runs query 'metadata'"):
            with holding_checkpoints(place, ["projection", "metadata"]):
                pytest.fail("both have it")
        with holding_checkpoints(place, ["projection"]):
            pass  # Other queries of the same folder are another's to run.
        first.kill()
        first.wait()
    with holding_checkpoints(place, ["projection", "metadata"]):
        pass


def test_a_folder_that_is_given_as_an_address_is_the_same_folder(tmp_path):
    with holding_checkpoints(str(tmp_path), ["metadata"]):
        with pytest.raises(FailedPreconditionError, match="Another driver"):
            with holding_checkpoints(f"file://{tmp_path}", ["metadata"]):
                pytest.fail("both have it")


def test_what_is_no_folder_that_can_be_written_is_said_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidArgumentError, match=r"Checkpoints cannot be kept in '.*file"):
            with holding_checkpoints(str(place), ["metadata"]):
                pytest.fail("it is no folder")


def test_an_address_is_left_to_spark(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with holding_checkpoints("s3://bucket/checkpoints", ["metadata"]):
        assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_left_to_spark(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(checkpoints.fcntl, "flock", refuse)
    entered = []
    with holding_checkpoints(str(tmp_path), ["metadata"]):
        entered.append(True)
    assert entered
