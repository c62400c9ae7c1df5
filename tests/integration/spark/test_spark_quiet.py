"""Stopping a query is no error, and nothing says that it were."""

import threading
import time
from contextlib import contextmanager

import pytest

from tests.support.spark_scenes import PATIENCE


@contextmanager
def overheard(spark):
    """What the JVM logs and prints meanwhile; a function that tells it."""
    jvm = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    written, printed = jvm.java.io.StringWriter(), jvm.java.io.ByteArrayOutputStream()
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern("%p %c: %m%n%ex").build()
    appender = log4j.core.appender.WriterAppender.createAppender(
        layout, None, written, "overheard", False, True
    )
    appender.start()
    root = log4j.LogManager.getRootLogger()
    before = jvm.java.lang.System.err
    root.addAppender(appender)
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(printed, True))
    try:
        yield lambda: written.toString() + printed.toString()
    finally:
        root.removeAppender(appender)
        jvm.java.lang.System.setErr(before)


def counted_for_ever(began):
    def work(batch, _):
        began.set()
        while True:
            batch.count()

    return work


def slowly(batches):
    for batch in batches:
        time.sleep(0.2)
        yield batch


def stopped_in_foreach_batch(rows, folder):
    began = threading.Event()
    writer = rows.writeStream.foreachBatch(counted_for_ever(began))
    query = writer.option("checkpointLocation", folder).start()
    assert began.wait(PATIENCE)
    query.stop()
    return query


def stopped_in_a_task(rows, folder):
    writer = rows.mapInArrow(slowly, "value long").writeStream.format("noop")
    query = writer.option("checkpointLocation", folder).start()
    tracker = rows.sparkSession.sparkContext.statusTracker()
    until = time.monotonic() + PATIENCE
    while not tracker.getActiveJobsIds() and time.monotonic() < until:
        time.sleep(0.02)
    query.stop()
    return query


@pytest.mark.parametrize("stopped", [stopped_in_foreach_batch, stopped_in_a_task])
def test_a_query_that_is_stopped_in_the_middle_of_a_batch_prints_no_stack(
    spark, tmp_path, stopped, caplog
):
    rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).load().select("value")
    with overheard(spark) as heard:
        query = stopped(rows, str(tmp_path / "checkpoint"))
        assert query.exception() is None
        tracker = spark.sparkContext.statusTracker()
        while tracker.getActiveJobsIds():
            time.sleep(0.02)
        assert "\tat " not in heard()
        assert not [line for line in heard().splitlines() if line.startswith("ERROR ")]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_an_error_in_the_middle_of_a_batch_is_still_told(spark, tmp_path):
    def fail(batches):
        raise ValueError("a handler of ours")

    rows = spark.readStream.format("rate").load().select("value")
    with overheard(spark) as heard:
        writer = rows.mapInArrow(fail, "value long").writeStream.format("noop")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        with pytest.raises(Exception, match="a handler of ours"):
            query.awaitTermination(PATIENCE)
        assert "a handler of ours" in heard()
