"""The end of a session, whatever became of its JVM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING

from penstock.errors import UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A process that was killed closes its connections some moments before it has ended.
_MOMENTS = 5.0
# Java catches the signal and ends with a number of its own, unless that is too early.
_TOLD_TO_END = (-signal.SIGTERM, 128 + signal.SIGTERM)


@contextmanager
def stopping(spark: SparkSession) -> Iterator[None]:
    """Stop a session in the end. Where its JVM had ended by itself, killed for want of memory
    perhaps, that is the error, and not the pages that follow from it."""
    jvm = _jvm_of(spark)
    try:
        try:
            yield
        finally:
            spark.stop()
    except Exception as error:
        answer = None if jvm is None else _answer_of(jvm, error)
        if answer is None:
            raise
        raise UnavailableError(
            f"Spark's JVM ended {_how(answer)}; start again, and what was begun goes on where it "
            "was"
        ) from error


def _how(answer: int) -> str:
    if answer in _TOLD_TO_END:
        return "by SIGTERM, which a signal to its whole group is too"
    how = f"by signal {-answer}" if answer < 0 else f"with {answer}"
    return f"{how}, perhaps because memory was short"


def _jvm_of(spark: SparkSession) -> Popen[bytes] | None:
    """Its process, if it is one of ours."""
    gateway = getattr(getattr(spark, "_sc", None), "_gateway", None)
    found: Popen[bytes] | None = getattr(gateway, "proc", None)
    return found


def _answer_of(jvm: Popen[bytes], error: Exception) -> int | None:
    """None when it runs, so that the error is about something else."""
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    # What Java raised was said by a JVM that runs; of one that is ending, classes do not exist.
    is_gone = isinstance(error, ConnectionError | Py4JError)
    if is_gone and not isinstance(error, Py4JJavaError):
        with suppress(TimeoutExpired):
            return jvm.wait(_MOMENTS)
    return jvm.poll()
