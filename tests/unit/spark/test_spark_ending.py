"""A session whose JVM was killed ends with one error that says so."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.spark.session.ending import stopping


class Session:
    """With a process in the place of a JVM, which answers until it is killed."""

    def __init__(self):
        self.stopped = False
        forever = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        self.jvm = subprocess.Popen(forever, stdin=subprocess.PIPE)
        self._sc = SimpleNamespace(_gateway=SimpleNamespace(proc=self.jvm))

    def stop(self):
        if self.jvm.poll() is not None:
            raise ConnectionRefusedError(111, "Connection refused")
        self.stopped = True


@pytest.fixture
def spark():
    made = Session()
    yield made
    made.jvm.kill()
    made.jvm.communicate()


def test_a_jvm_that_is_still_ending_when_its_session_is_stopped_is_waited_for(spark, monkeypatch):
    def stop():
        spark.jvm.terminate()
        raise Py4JError("org.apache.spark.sql.classic.SparkSession does not exist in the JVM")

    monkeypatch.setattr(spark, "stop", stop)
    with pytest.raises(UnavailableError, match="JVM ended by SIGTERM, which a signal"):
        with stopping(spark):
            pass


def test_a_jvm_that_was_killed_is_the_error_and_not_what_followed_from_it(spark):
    with pytest.raises(UnavailableError, match=r"JVM ended by signal 9.*start again"):
        with stopping(spark):
            spark.jvm.kill()
            raise Py4JNetworkError("Answer from Java side is empty")


def test_one_that_ended_while_nobody_asked_it_is_found_out_by_stopping_it(spark):
    with pytest.raises(UnavailableError, match="JVM ended with 0"):
        with stopping(spark):
            spark.jvm.communicate()


def test_whatever_else_is_wrong_is_said_and_the_session_is_stopped(spark):
    with pytest.raises(InvalidArgumentError, match="Stages are"):
        with stopping(spark):
            raise InvalidArgumentError("Stages are metadata")
    assert spark.stopped


def test_a_session_without_a_jvm_of_ours_is_stopped(spark):
    del spark._sc
    with stopping(spark):
        pass
    assert spark.stopped
