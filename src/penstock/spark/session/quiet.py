"""What Spark says twice, said once.

A query that is stopped in the middle of a batch has its tasks killed, and every part of Spark that
was at work tells of it as an error, with a stack of Java. An error that is one is told all the same
by the task that failed, by the scheduler and by the query.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOLD_BY_OTHERS = {
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec": "OFF",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask": "OFF",
    "org.apache.spark.storage.ShuffleBlockFetcherIterator": "OFF",
    "org.apache.hadoop.util.Shell": "ERROR",
}
# Of this one a single sentence.
_ABORTING = ("org.apache.spark.util.Utils", "Aborting task.*")
# By this one py4j tells of all that a Python function of foreachBatch raised, before Spark looks at
# it; and this is in what is raised when a query was stopped.
_CALLS = logging.getLogger("py4j.clientserver")
_STOPPED = ("SPARK_JOB_CANCELLED", "java.lang.InterruptedException")
# Spark looks at what a Python function of foreachBatch raised, when its query was stopped, with a
# regular expression that needs some hundred bytes of the stack for each letter: the usual megabyte
# ends in a StackOverflowError. It is address space, and used only when it is needed.
STACK = "-Xss16m"


def say_once(spark: SparkSession) -> None:
    """Leave out, in the log of this JVM and of its calls, what others tell as well."""
    _CALLS.addFilter(_is_of_no_stop)
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    core = log4j.core
    for name, level in _TOLD_BY_OTHERS.items():
        core.config.Configurator.setLevel(name, log4j.Level.valueOf(level))
    name, sentence = _ABORTING
    result = getattr(jvm, "org.apache.logging.log4j.core.Filter$Result")
    deny = core.filter.RegexFilter.createFilter(sentence, None, False, result.DENY, result.NEUTRAL)
    context = log4j.LogManager.getContext(False)
    logger = core.config.LoggerConfig(name, None, True)
    logger.addFilter(deny)
    context.getConfiguration().addLogger(name, logger)
    context.updateLoggers()


def _is_of_no_stop(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return error is None or not any(sign in str(error) for sign in _STOPPED)
