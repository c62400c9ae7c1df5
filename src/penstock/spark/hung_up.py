"""The process that Spark asks for offsets and partitions, when Spark is gone."""

from __future__ import annotations

import os
import sys

# What reading from Spark and writing to it raise then. A broker's are errors of our own.
_GONE = (EOFError, BrokenPipeError, ConnectionResetError)


def end_if_spark_hung_up() -> None:
    """For whoever is told to stop. A query that is stopped has this process killed; on a busy
    machine its end of the line is closed before, and Spark's own code would print pages about not
    being able to say so. There is nobody left to say anything to."""
    if isinstance(sys.exception(), _GONE):
        os._exit(0)
