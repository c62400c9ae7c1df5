"""The process of a source ends without a word when the query that it served was stopped."""

import subprocess
import sys

import pytest

# As Spark's own code does it: stop, then tell of the failure over the line that is gone.
PROGRAM = """
from penstock.spark.options import SourceOptions
from penstock.spark.{kind}.stream import {reader}

given = {{"url": "nats://nowhere", **{options}}}
reader = {reader}(SourceOptions.of(given), None)
try:
    raise {error}
finally:
    reader.stop()
"""
KINDS = {
    "source": ("LogStreamReader", {"topic": "orders"}),
    "queue": ("QueueStreamReader", {"mode": "queue", "subscription": "one", "spoolLocation": "x"}),
}


def ended(kind, error):
    reader, options = KINDS[kind]
    text = PROGRAM.format(kind=kind, reader=reader, options=options, error=error)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("kind", "error"), [("source", "EOFError"), ("queue", "BrokenPipeError")])
def test_a_reader_that_is_stopped_because_spark_is_gone_says_nothing(kind, error):
    done = ended(kind, error)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_reader_that_is_stopped_by_an_error_leaves_it_to_spark():
    done = ended("source", "RuntimeError('what is wrong')")
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: what is wrong\n")
