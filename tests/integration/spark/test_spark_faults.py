"""Spark goes on when what it stands on fails."""

import threading

import pyarrow as pa
import pytest

from penstock.errors import DataLossError
from penstock.spark.options import SourceOptions
from penstock.spark.schema import source_schema
from penstock.spark.source.reader import LogRange, read_range
from tests.support.nats_scenes import api, fill, make, stored
from tests.support.range_logs import WAYS, read_all_ranges
from tests.support.servers import NatsServer
from tests.support.spark_scenes import PATIENCE, stream


@pytest.fixture
def server(tmp_path):
    (tmp_path / "nats").mkdir()
    with NatsServer(tmp_path / "nats") as running:
        yield running


def options(url, topic, **given):
    return SourceOptions.of({"url": url, "topic": topic, **given})


def read(options, part):
    return [
        row
        for batch in read_range(options, source_schema(headers=False), part)
        for row in batch.column("sequence").to_pylist()
    ]


@pytest.fixture(params=WAYS)
def either_way(request, monkeypatch):
    read_all_ranges(monkeypatch, request.param)


@pytest.mark.usefixtures("either_way")
def test_a_range_that_was_purged_after_it_was_planned_is_an_error_or_skipped(server, caplog):
    make(server.url, "orders")
    fill(server.url, "orders", range(20))
    api(server.url, "STREAM.PURGE.orders", {"seq": 11})
    part = LogRange("orders", 6, 15)
    with pytest.raises(DataLossError, match="up to 5 messages are gone"):
        read(options(server.url, "orders"), part)
    assert read(options(server.url, "orders", failOnDataLoss="false"), part) == list(range(11, 16))
    assert "up to 5 messages are gone" in caplog.text


def test_a_range_in_a_topic_that_keeps_the_last_of_each_subject_is_never_lost(server):
    api(
        server.url,
        "STREAM.CREATE.latest",
        {
            "name": "latest",
            "subjects": ["latest"],
            "max_msgs_per_subject": 1,
            "storage": "file",
            "allow_direct": True,
        },
    )
    fill(server.url, "latest", range(20))
    assert read(options(server.url, "latest"), LogRange("latest", 6, 20)) == [20]


@pytest.mark.usefixtures("either_way")
def test_a_reader_goes_on_where_it_was_when_the_server_comes_back(server):
    make(server.url, "orders")
    fill(server.url, "orders", range(25_000))
    rows = read_range(
        options(server.url, "orders"),
        source_schema(headers=False),
        LogRange("orders", 1, 25_000),
    )
    first = next(rows)
    server.kill()
    back = threading.Timer(0.5, server.start)
    back.start()
    rest = pa.Table.from_batches([first, *rows]).column("sequence").to_pylist()
    back.join()
    assert rest == list(range(1, 25_001))


def fail_first(batches):
    """Publishes some rows, then dies, the first time."""
    from pyspark import TaskContext

    yield from batches
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")


def run(frame, url, folder, **options):
    return (
        frame.writeStream.format("penstock")
        .options(url=url, checkpointLocation=str(folder), **options)
        .trigger(**{"availableNow": True} if options else {"processingTime": "0 seconds"})
        .start()
    )


@pytest.mark.parametrize("fence", ["false", "true"])
def test_a_task_that_fails_half_way_and_is_run_again_stores_nothing_twice(
    spark, server, tmp_path, fence
):
    make(server.url, "orders", "copied")
    fill(server.url, "orders", range(500))
    frame = stream(spark, server.url, "orders", maxRecordsPerPartition=250).select("data")
    frame = frame.mapInArrow(fail_first, "data binary")
    query = run(frame, server.url, tmp_path / "checkpoint", topic="copied", fence=fence)
    assert query.awaitTermination(PATIENCE)
    assert sorted(map(int, stored(server.url, "copied"))) == list(range(500))


def test_a_query_outlives_a_server_that_is_killed_and_started_again(spark, server, tmp_path):
    make(server.url, "orders", "copied")
    fill(server.url, "orders", range(100))
    frame = stream(spark, server.url, "orders", maxOffsetsPerTrigger=100)
    query = (
        frame.select("data", "message_id")
        .writeStream.format("penstock")
        .options(url=server.url, topic="copied", checkpointLocation=str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        for n in (1, 2):
            server.kill()
            server.start()
            fill(server.url, "orders", range(n * 100, n * 100 + 100))
        query.processAllAvailable()
        assert query.exception() is None
    finally:
        query.stop()
    assert sorted(map(int, stored(server.url, "copied"))) == list(range(300))
