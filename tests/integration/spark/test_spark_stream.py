"""Topics as streams."""

import json
import shutil
import time

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from penstock.brokers.nats.local.folder import LocalServer
from penstock.spark.behind import offsets_of
from tests.support.nats_scenes import api, fill, make
from tests.support.servers import NatsServer
from tests.support.spark_scenes import PATIENCE, numbers, run_available, stream


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


def work_queue(url, name):
    api(
        url,
        f"STREAM.CREATE.{name}",
        {
            "name": name,
            "subjects": [name],
            "retention": "workqueue",
            "storage": "file",
            "allow_direct": True,
        },
    )


def until(condition, within=PATIENCE):
    """Wait for what another process does."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "not true in time"
        time.sleep(0.02)


def test_a_query_goes_on_where_its_checkpoint_ends(spark, server, tmp_path):
    make(server.url, "resumed")
    fill(server.url, "resumed", range(100))
    frame = stream(spark, server.url, "resumed")
    run_available(frame, tmp_path)
    fill(server.url, "resumed", range(100, 150))
    out = run_available(frame, tmp_path)
    assert sorted(numbers(spark.read.parquet(str(out)))) == list(range(150))


def test_batches_are_no_larger_than_they_may_be_and_available_now_ends(spark, server, tmp_path):
    make(server.url, "small-one", "small-two")
    fill(server.url, "small-one", range(80))
    fill(server.url, "small-two", range(40))
    reader = spark.readStream.format("penstock").option("url", server.url)
    frame = reader.options(topics="small-one,small-two", maxOffsetsPerTrigger=50).load()
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE)
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    assert sum(rows) == 120
    assert max(rows) <= 50
    last = query.recentProgress[-1]["sources"][0]
    assert offsets_of(last["endOffset"]) == {"small-one": 81, "small-two": 41}
    assert json.loads(last["latestOffset"]) == {"small-one": 81, "small-two": 41}


def test_batches_are_bounded_by_bytes(spark, server, tmp_path):
    make(server.url, "heavy")
    fill(server.url, "heavy", range(40), size=10_000)
    frame = stream(spark, server.url, "heavy", maxBytesPerTrigger=100_000)
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE)
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    assert sum(rows) == 40
    assert max(rows) <= 10


def test_a_running_query_sees_what_comes_and_reports_its_lag(spark, server, tmp_path):
    make(server.url, "live")
    fill(server.url, "live", range(3))
    frame = stream(spark, server.url, "live", startingOffsets="latest")
    query = (
        frame.writeStream.format("memory")
        .queryName("live")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        until(lambda: query.lastProgress is not None)
        fill(server.url, "live", range(3, 6))
        until(lambda: spark.table("live").count() == 3)
        assert sorted(numbers(spark.table("live"))) == [3, 4, 5]
        until(lambda: latest(query) == {"live": 7})
    finally:
        query.stop()


def latest(query):
    return json.loads(query.lastProgress["sources"][0]["latestOffset"])


def test_a_stream_begins_at_a_time(spark, server, tmp_path):
    make(server.url, "since")
    fill(server.url, "since", [1])
    time.sleep(0.05)
    moment = str(int(time.time() * 1000))
    time.sleep(0.05)
    fill(server.url, "since", [2, 3])
    out = run_available(stream(spark, server.url, "since", startingTimestamp=moment), tmp_path)
    assert sorted(numbers(spark.read.parquet(str(out)))) == [2, 3]


def test_a_work_queue_is_consumed_when_a_batch_is_committed_and_not_before(spark, server, tmp_path):
    work_queue(server.url, "tasks")
    fill(server.url, "tasks", range(10))
    frame = stream(spark, server.url, "tasks")
    out = run_available(frame, tmp_path)
    assert sorted(numbers(spark.read.parquet(str(out)))) == list(range(10))
    fill(server.url, "tasks", range(10, 15))
    out = run_available(frame, tmp_path)
    assert sorted(numbers(spark.read.parquet(str(out)))) == list(range(15))
    # Committed batches are gone; the last may be waiting for the next call.
    assert api(server.url, "STREAM.INFO.tasks")["state"]["first_seq"] >= 11


def test_a_work_queue_read_from_its_end_loses_nothing(spark, server, tmp_path):
    work_queue(server.url, "kept")
    fill(server.url, "kept", range(10))
    run_available(stream(spark, server.url, "kept", startingOffsets="latest"), tmp_path)
    assert api(server.url, "STREAM.INFO.kept")["state"]["messages"] == 10


def test_a_work_queue_takes_no_filter(spark, server):
    work_queue(server.url, "whole")
    with pytest.raises(AnalysisException, match="consumed as a whole"):
        stream(spark, server.url, "whole", filter='attributes.a = "b"')


def test_messages_purged_under_a_query_stop_it_or_are_skipped(spark, server, tmp_path):
    make(server.url, "vanishing")
    fill(server.url, "vanishing", range(1, 11))
    frame = stream(spark, server.url, "vanishing")
    run_available(frame, tmp_path)
    fill(server.url, "vanishing", range(11, 31))
    api(server.url, "STREAM.PURGE.vanishing", {"seq": 21})
    with pytest.raises(StreamingQueryException, match="10 messages are gone"):
        run_available(frame, tmp_path)
    lenient = stream(spark, server.url, "vanishing", failOnDataLoss="false")
    out = run_available(lenient, tmp_path)
    found = sorted(numbers(spark.read.parquet(str(out))))
    assert found == [*range(1, 11), *range(21, 31)]


def failing(frame, folder):
    """A query that fails in its first batch with rows."""

    def act(rows, number):
        if rows.count():
            raise RuntimeError("the first attempt fails")

    writer = frame.writeStream.foreachBatch(act)
    return writer.option("checkpointLocation", str(folder / "out-checkpoint")).start()


def test_a_first_batch_that_was_purged_before_it_was_run_again_is_noticed(spark, server, tmp_path):
    make(server.url, "first-batch")
    fill(server.url, "first-batch", range(1, 11))
    frame = stream(spark, server.url, "first-batch", startingOffsets='{"first-batch": 1}')
    with pytest.raises(StreamingQueryException, match="the first attempt fails"):
        failing(frame, tmp_path).awaitTermination(PATIENCE)
    api(server.url, "STREAM.PURGE.first-batch", {"seq": 5})
    with pytest.raises(StreamingQueryException, match="4 messages are gone"):
        run_available(frame, tmp_path)


def test_a_stream_from_the_latest_begins_there_also_after_its_first_batch_failed(
    spark, server, tmp_path
):
    make(server.url, "from-latest")
    fill(server.url, "from-latest", range(3))
    frame = stream(spark, server.url, "from-latest", startingOffsets="latest")
    query = failing(frame, tmp_path)
    until(lambda: query.lastProgress is not None)
    fill(server.url, "from-latest", range(3, 6))
    with pytest.raises(StreamingQueryException, match="the first attempt fails"):
        query.awaitTermination(PATIENCE)
    fill(server.url, "from-latest", range(6, 9))
    out = run_available(frame, tmp_path)
    # It lists the files of every batch, and the first was another sink's.
    shutil.rmtree(out / "_spark_metadata")
    assert sorted(numbers(spark.read.parquet(str(out)))) == list(range(3, 9))


def test_a_topic_that_was_made_anew_is_noticed(spark, server, tmp_path):
    make(server.url, "remade")
    fill(server.url, "remade", range(10))
    frame = stream(spark, server.url, "remade")
    run_available(frame, tmp_path)
    api(server.url, "STREAM.DELETE.remade")
    make(server.url, "remade")
    fill(server.url, "remade", range(3))
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "out-checkpoint"))
        .option("path", str(tmp_path / "out"))
        .start()
    )
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        query.awaitTermination(PATIENCE)


def test_a_topic_made_anew_and_longer_by_a_restart_is_refused_or_read_from_its_beginning(
    spark, server, tmp_path
):
    make(server.url, "outgrown")
    fill(server.url, "outgrown", range(10))
    frame = stream(spark, server.url, "outgrown")
    run_available(frame, tmp_path)
    api(server.url, "STREAM.DELETE.outgrown")
    make(server.url, "outgrown")
    fill(server.url, "outgrown", range(100, 120))
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        run_available(frame, tmp_path)
    out = run_available(stream(spark, server.url, "outgrown", whenRecreated="begin"), tmp_path)
    assert sorted(numbers(spark.read.parquet(str(out)))) == [*range(10), *range(100, 120)]


def test_a_topic_made_anew_under_a_query_is_noticed_though_it_is_longer(spark, server, tmp_path):
    make(server.url, "swapped")
    fill(server.url, "swapped", range(3))
    writer = stream(spark, server.url, "swapped").writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        api(server.url, "STREAM.DELETE.swapped")
        make(server.url, "swapped")
        fill(server.url, "swapped", range(100))
        with pytest.raises(StreamingQueryException, match=r"not found|deleted and created again"):
            query.awaitTermination(PATIENCE)
    finally:
        query.stop()


def test_a_topic_may_be_added_and_none_taken_away(spark, server, tmp_path):
    make(server.url, "old-topic", "new-topic")
    fill(server.url, "old-topic", [1])
    fill(server.url, "new-topic", [2])
    reader = spark.readStream.format("penstock").option("url", server.url)
    run_available(reader.option("topic", "old-topic").load(), tmp_path)
    reader = spark.readStream.format("penstock").option("url", server.url)
    out = run_available(reader.option("topics", "new-topic,old-topic").load(), tmp_path)
    assert sorted(numbers(spark.read.parquet(str(out)))) == [1, 2]
    with pytest.raises(PySparkException, match="the options no longer name"):
        run_available(stream(spark, server.url, "new-topic"), tmp_path)


def test_a_local_server_is_found_and_let_go(spark, tmp_path):
    folder = tmp_path / "local"
    url = f"local://{folder}"
    make(url, "orders")
    fill(url, "orders", range(10))
    assert LocalServer(folder).state() is None, "everybody has left"
    out = run_available(stream(spark, url, "orders"), tmp_path)
    assert sorted(numbers(spark.read.parquet(str(out)))) == list(range(10))
    until(lambda: LocalServer(folder).state() is None)


def test_a_checkpoint_that_went_back_in_time_reads_the_same_again(spark, server, tmp_path):
    make(server.url, "again")
    fill(server.url, "again", range(10))
    frame = stream(spark, server.url, "again", maxOffsetsPerTrigger=5)
    run_available(frame, tmp_path)
    shutil.copytree(tmp_path / "out-checkpoint", tmp_path / "copy")
    fill(server.url, "again", range(10, 15))
    run_available(frame, tmp_path)
    shutil.rmtree(tmp_path / "out-checkpoint")
    (tmp_path / "copy").rename(tmp_path / "out-checkpoint")
    shutil.rmtree(tmp_path / "out" / "_spark_metadata")
    out = run_available(frame, tmp_path)
    shutil.rmtree(tmp_path / "out" / "_spark_metadata")
    rows = spark.read.parquet(str(out)).select("message_id", "data").distinct()
    assert sorted(numbers(rows)) == list(range(15))
