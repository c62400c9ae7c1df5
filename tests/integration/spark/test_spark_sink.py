"""Rows to topics."""

import shutil
from functools import partial

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from penstock.spark.sink_counts import SinkCount, sink_counts
from tests.support.nats_scenes import api, fill, make, stored
from tests.support.servers import NatsServer
from tests.support.spark_scenes import PATIENCE, stream, table


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        make(running.url, "orders")
        fill(running.url, "orders", range(200))
        yield running


def save(frame, url, **options):
    frame.write.format("penstock").mode("append").option("url", url).options(**options).save()


def pump(frame, url, folder, **options):
    """Run a stream into a sink until it has caught up."""
    query = (
        frame.writeStream.format("penstock")
        .option("url", url)
        .options(**options)
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(PATIENCE), "the query did not end"
    finally:
        query.stop()


def test_a_table_is_published_with_all_its_columns(spark, server):
    make(server.url, "out", "elsewhere")
    rows = [
        (b"1", {"k": "v"}, "ann", "id-1", "out.a", "out"),
        (b"2", None, None, None, None, "elsewhere"),
    ]
    frame = spark.createDataFrame(
        rows,
        "data binary, attributes map<string,string>, ordering_key string, message_id string, "
        "subject string, topic string",
    )
    save(frame, server.url)
    [one] = table(spark, server.url, "out").collect()
    [two] = table(spark, server.url, "elsewhere").collect()
    assert (bytes(one.data), one.attributes, one.ordering_key) == (b"1", {"k": "v"}, "ann")
    assert (one.message_id, one.subject) == ("id-1", "out.a")
    assert (bytes(two.data), two.attributes, two.ordering_key) == (b"2", {}, None)
    assert two.message_id not in ("", one.message_id)


def test_text_is_published_as_utf_8(spark, server):
    make(server.url, "texts")
    save(spark.createDataFrame([("é",)], "data string"), server.url, topic="texts")
    assert stored(server.url, "texts") == ["é"]


def test_a_large_table_arrives_whole(spark, server):
    make(server.url, "many")
    frame = spark.range(30_000, numPartitions=3).selectExpr("cast(id as string) as data")
    save(frame, server.url, topic="many")
    assert sorted(map(int, stored(server.url, "many"))) == list(range(30_000))


def test_rows_of_a_partition_keep_their_order_on_the_way_to_each_topic(spark, server):
    make(server.url, "even", "odd")
    frame = spark.range(4000, numPartitions=1)
    topic = "if(id % 2 = 0, 'even', 'odd') as topic"
    save(frame.selectExpr("cast(id as string) as data", topic), server.url)
    assert [*map(int, stored(server.url, "even"))] == list(range(0, 4000, 2))
    assert [*map(int, stored(server.url, "odd"))] == list(range(1, 4000, 2))


def test_a_stream_is_published_once_however_often_its_batches_run(spark, server, tmp_path):
    make(server.url, "copied")
    frame = stream(spark, server.url, "orders", maxOffsetsPerTrigger=80).select("data")
    pump(frame, server.url, tmp_path / "one", topic="copied")
    first = stored(server.url, "copied")
    assert sorted(map(int, first)) == list(range(200))
    # As if the driver had died before it could write down that the last batch was done.
    forget_commits(tmp_path / "one", since=1)
    pump(frame, server.url, tmp_path / "one", topic="copied")
    assert stored(server.url, "copied") == first


def test_equal_rows_of_a_table_are_all_published(spark, server):
    make(server.url, "equals")
    save(spark.range(40, numPartitions=4).selectExpr("'x' as data"), server.url, topic="equals")
    assert stored(server.url, "equals") == ["x"] * 40


@pytest.mark.parametrize(
    ("columns", "fence"), [(["data", "topic", "sequence"], "false"), (["data"], "true")]
)
def test_a_batch_that_failed_half_way_is_whole_though_it_is_shared_out_otherwise(
    spark, server, tmp_path, columns, fence
):
    topic = f"shared-{len(columns)}-{fence}"
    # With a fence ids need not be remembered.
    make(server.url, topic, duplicate_window=0.1 if fence == "true" else 120.0)
    broken = tmp_path / "broken"
    broken.touch()

    def frame(size):
        rows = stream(spark, server.url, "orders", maxRecordsPerPartition=size).select(*columns)
        return rows.mapInArrow(partial(failing_at_150, str(broken)), rows.schema)

    with pytest.raises(StreamingQueryException):
        pump(frame(50), server.url, tmp_path / "one", topic=topic, fence=fence)
    assert 0 < len(stored(server.url, topic)) < 200
    broken.unlink()
    pump(frame(35), server.url, tmp_path / "one", topic=topic, fence=fence)
    assert sorted(map(int, stored(server.url, topic))) == list(range(200))


def failing_at_150(flag, batches):
    from pathlib import Path

    for batch in batches:
        if Path(flag).exists() and b"150" in batch.column("data").to_pylist():
            raise ValueError("not yet")
        yield batch


def test_an_older_checkpoint_loses_nothing(spark, server, tmp_path):
    make(server.url, "growing", "aged")
    fill(server.url, "growing", range(40))
    frame = stream(spark, server.url, "growing").select("data")
    pump(frame, server.url, tmp_path / "one", topic="aged")
    shutil.copytree(tmp_path / "one", tmp_path / "old")
    fill(server.url, "growing", range(40, 60))
    pump(frame, server.url, tmp_path / "one", topic="aged")
    fill(server.url, "growing", range(60, 80))
    older = stream(spark, server.url, "growing", maxRecordsPerPartition=7).select("data")
    pump(older, server.url, tmp_path / "old", topic="aged")
    assert sorted(map(int, stored(server.url, "aged"))) == list(range(80))


def test_what_a_topic_had_already_is_counted(spark, server, tmp_path):
    make(server.url, "counted")
    frame = spark.createDataFrame([("1", "a"), ("2", "b")], "data string, message_id string")
    save(frame, server.url, topic="counted")
    assert sink_counts()["counted"] == SinkCount(rows=2, duplicates=0)
    save(frame, server.url, topic="counted")
    assert sink_counts()["counted"] == SinkCount(rows=4, duplicates=2)
    # A stream counts as well, each batch when it is committed.
    orders = stream(spark, server.url, "orders").selectExpr("data", "'a' as message_id").limit(1)
    pump(orders, server.url, tmp_path, topic="counted")
    assert sink_counts()["counted"] == SinkCount(rows=5, duplicates=3)


def forget_commits(checkpoint, since):
    """Batch `since` was planned and is not known to have been done."""
    for folder, first in (("commits", since), ("offsets", since + 1)):
        for file in (checkpoint / folder).iterdir():
            number = file.name.lstrip(".").split(".")[0]
            if number.isdigit() and int(number) >= first:
                file.unlink()


def test_with_a_fence_a_batch_is_stored_once_though_its_ids_are_forgotten(spark, server, tmp_path):
    make(server.url, "fenced", duplicate_window=0.1)
    frame = stream(spark, server.url, "orders", maxOffsetsPerTrigger=80).select("data")
    pump(frame, server.url, tmp_path / "one", topic="fenced", fence="true")
    first = stored(server.url, "fenced")
    assert sorted(map(int, first)) == list(range(200))
    forget_commits(tmp_path / "one", since=2)
    pump(frame, server.url, tmp_path / "one", topic="fenced", fence="true")
    assert stored(server.url, "fenced") == first


def test_without_a_fence_it_is_not(spark, server, tmp_path):
    make(server.url, "unfenced", duplicate_window=0.1)
    frame = stream(spark, server.url, "orders").select("data")
    pump(frame, server.url, tmp_path / "one", topic="unfenced")
    forget_commits(tmp_path / "one", since=0)
    pump(frame, server.url, tmp_path / "one", topic="unfenced")
    assert len(stored(server.url, "unfenced")) == 400


def test_a_fence_finds_what_a_task_stored_before_it_died(spark, server, tmp_path):
    make(server.url, "half", duplicate_window=0.1)
    frame = stream(spark, server.url, "orders").select("data")
    pump(frame, server.url, tmp_path / "one", topic="half", fence="true")
    first = stored(server.url, "half")
    # As a task leaves it that dies before its end: rows stored, the fence not sealed.
    reopen_fences(server.url)
    api(server.url, "STREAM.MSG.DELETE.half", {"seq": 200})
    forget_commits(tmp_path / "one", since=0)
    pump(frame, server.url, tmp_path / "one", topic="half", fence="true")
    assert sorted(stored(server.url, "half")) == sorted(first)
    assert api(server.url, "STREAM.INFO.half")["state"]["last_seq"] == 201


def reopen_fences(url):
    import base64
    import json

    from penstock.brokers.nats.protocol.address import NatsOptions
    from penstock.brokers.nats.sync.connection import BlockingConnection

    with BlockingConnection(NatsOptions.of(url)) as connection:
        last = connection.request("STREAM.INFO.penstock-fences")["state"]["last_seq"]
        message = connection.request("STREAM.MSG.GET.penstock-fences", {"seq": last})["message"]
        mark = json.loads(base64.b64decode(message["data"]))
        connection.ask(message["subject"], b"", json.dumps({**mark, "done": False}).encode())


def test_with_a_fence_a_checkpoint_that_went_back_in_time_is_noticed(spark, server, tmp_path):
    make(server.url, "guarded", duplicate_window=0.1)
    frame = stream(spark, server.url, "orders", maxOffsetsPerTrigger=80).select("data")
    checkpoint = tmp_path / "one"
    pump(frame, server.url, checkpoint, topic="guarded", fence="true")
    forget_commits(checkpoint, since=1)
    with pytest.raises(StreamingQueryException, match="went back in time"):
        pump(frame, server.url, checkpoint, topic="guarded", fence="true")
    assert len(stored(server.url, "guarded")) == 200
    shutil.rmtree(checkpoint)


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("id as data", {"topic": "orders"}, "must be binary or string"),
        ("id", {"topic": "orders"}, "Column 'id' is no part of a message"),
        ("'k' as ordering_key", {"topic": "orders"}, "no column 'data'"),
        ("'x' as data", {}, "Set option 'topic'"),
        ("'x' as data", {"topic": "nowhere"}, "Topic not found: 'nowhere'"),
        ("'x' as data, map('a', 1) as attributes", {"topic": "orders"}, "map<string,string>"),
        ("'x' as data, 'b.c' as subject", {"topic": "orders"}, "not inside topic"),
        ("cast(null as string) as data", {"topic": "orders"}, "'data' is null"),
        ("'x' as data", {"topic": "orders", "fences": "true"}, "did you mean 'fence'"),
        ("'x' as data", {"topic": "orders", "fence": "true"}, "for streams"),
        ("'x' as data", {"topic": "orders", "url": "memory://"}, "local:///DIR"),
    ],
)
def test_what_is_wrong_with_a_sink_is_said_before_anything_is_stored(
    spark, server, columns, options, says
):
    frame = (
        spark.range(1).selectExpr(*columns.split(", ", 1))
        if "map" not in columns
        else (spark.range(1).selectExpr("'x' as data", "map('a', 1) as attributes"))
    )
    writer = frame.write.format("penstock").mode("append").option("url", server.url)
    with pytest.raises(PySparkException) as raised:
        writer.options(**options).save()
    assert says in str(raised.value)


def test_a_topic_is_not_overwritten(spark, server):
    frame = spark.range(1).selectExpr("'x' as data")
    with pytest.raises(PySparkException, match="append"):
        frame.write.format("penstock").mode("overwrite").options(
            url=server.url, topic="orders"
        ).save()


def test_a_topic_becomes_no_table_of_the_catalog(spark, server):
    """Nobody could read it: Spark keeps the options of such a table to itself."""
    make(server.url, "kept")
    frame, options = spark.range(3).selectExpr("'x' as data"), {"url": server.url, "topic": "kept"}
    for write in (
        lambda: frame.write.format("penstock").options(**options).saveAsTable("kept"),
        lambda: frame.writeTo("kept").using("penstock").options(**options).create(),
    ):
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
            write()
        assert not spark.catalog.tableExists("kept")
    assert stored(server.url, "kept") == []


def test_a_batch_of_a_stream_is_saved_as_a_table_is(spark, server, tmp_path):
    make(server.url, "batched")

    def publish(batch, _):
        save(batch.select("data", "message_id"), server.url, topic="batched")

    query = (
        stream(spark, server.url, "orders")
        .writeStream.foreachBatch(publish)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE), "the query did not end"
    assert len(stored(server.url, "batched")) == 200


def test_a_stream_with_the_wrong_columns_fails_in_its_first_batch(spark, server, tmp_path):
    frame = stream(spark, server.url, "orders").select("data", "sequence").selectExpr("sequence")
    with pytest.raises(StreamingQueryException, match="no column 'data'"):
        pump(frame, server.url, tmp_path, topic="orders")
