"""Spark goes on when what it stands on fails."""

import threading

import pyarrow as pa
import pytest

from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.sync.connection import BlockingConnection
from penstock.errors import DataLossError, UnauthenticatedError
from penstock.spark.options import SourceOptions
from penstock.spark.schema import source_schema
from penstock.spark.source.reader import LogRange, read_range
from tests.support.servers import NatsServer
from tests.support.spark_scenes import api, fill, make, stored, stream


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


WAYS = {"directly": 10**9, "through a consumer": 1}


def read_all(monkeypatch, way):
    """Read every range this way, however long it is."""
    monkeypatch.setattr("penstock.brokers.nats.sync.ranges.WORTH_A_CONSUMER", WAYS[way])


@pytest.fixture(params=WAYS)
def either_way(request, monkeypatch):
    read_all(monkeypatch, request.param)


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
def test_every_kind_of_message_is_read_alike_and_no_consumer_is_left(server, monkeypatch):
    monkeypatch.setattr("penstock.brokers.nats.sync.passing_consumer.BATCH_BYTES", 50_000)
    monkeypatch.setattr("penstock.brokers.nats.sync.direct.BATCH_BYTES", 50_000)
    make(server.url, "orders")
    fill(server.url, "orders", [1, 2])
    fill(server.url, "orders", [3], size=200_000)
    fill(server.url, "orders", [4], attributes={"a b": "é"}, ordering_key="ann")
    with BlockingConnection(NatsOptions.of(server.url)) as connection:
        connection.ask("orders.deep", b"", b"5")
    fill(server.url, "orders", [6], size=20_000)
    fill(server.url, "orders", range(7, 20), size=10_000)
    batches = read_range(
        options(server.url, "orders"),
        source_schema(headers=False),
        LogRange("orders", 2, 18),
    )
    rows = pa.Table.from_batches(batches).to_pylist()
    assert [int(row["data"].rstrip(b"\0")) for row in rows] == list(range(2, 19))
    assert [row["sequence"] for row in rows] == list(range(2, 19))
    assert (rows[2]["attributes"], rows[2]["ordering_key"]) == ([("a b", "é")], "ann")
    assert (rows[3]["subject"], rows[3]["message_id"]) == ("orders.deep", "orders-5")
    assert (rows[4]["subject"], rows[4]["message_id"]) == ("orders", "orders/6")
    times = [row["publish_time"] for row in rows]
    assert times == sorted(times)
    assert len(rows[1]["data"]) == 200_001
    assert api(server.url, "STREAM.INFO.orders")["state"]["consumer_count"] == 0


def test_both_ways_of_reading_agree_on_every_column(server, monkeypatch):
    make(server.url, "orders", routed_attributes=("stage",))
    for n in range(30):
        fill(server.url, "orders", [n], attributes={"stage": "abc"[n % 3]})
    wanted = options(
        server.url,
        "orders",
        filter='attributes.stage = "a" OR attributes.stage = "c"',
        includeHeaders="true",
    )
    tables = []
    for way in WAYS:
        read_all(monkeypatch, way)
        batches = read_range(wanted, source_schema(headers=True), LogRange("orders", 3, 28))
        tables.append(pa.Table.from_batches(batches).combine_chunks())
    assert tables[0].equals(tables[1])
    kept = [n for n in range(30) if 3 <= n + 1 <= 28 and n % 3 != 1]
    assert tables[0].column("sequence").to_pylist() == [n + 1 for n in kept]


def test_a_user_who_may_make_no_consumers_reads_directly(tmp_path, monkeypatch):
    (tmp_path / "nats").mkdir()
    denied = """
    authorization { users = [
      { user: admin, password: admin }
      { user: reader, password: reader,
        permissions: { publish: { deny: "$JS.API.CONSUMER.>" } } }
    ] }
    """
    with NatsServer(tmp_path / "nats", extra=denied) as server:
        admin = server.url.replace("nats://", "nats://admin:admin@")
        reader = server.url.replace("nats://", "nats://reader:reader@")
        make(admin, "orders")
        fill(admin, "orders", range(10))
        read_all(monkeypatch, "through a consumer")
        found = read(options(reader, "orders"), LogRange("orders", 1, 10))
        assert found == list(range(1, 11))


@pytest.mark.parametrize("kind", [{"tls": True}, {"credentials": True}], ids=str)
def test_a_range_is_read_with_tls_and_with_credentials(tmp_path, kind, monkeypatch):
    read_all(monkeypatch, "through a consumer")
    (tmp_path / "nats").mkdir()
    with NatsServer(tmp_path / "nats", **kind) as server:
        make(server.url, "orders")
        fill(server.url, "orders", range(10))
        found = read(options(server.url, "orders"), LogRange("orders", 1, 10))
        assert found == list(range(1, 11))


def test_a_wrong_password_is_said(tmp_path):
    (tmp_path / "nats").mkdir()
    guarded = 'authorization { token: "right" }'
    with NatsServer(tmp_path / "nats", extra=guarded) as server:
        good = server.url.replace("nats://", "nats://right@")
        make(good, "orders")
        fill(good, "orders", [1])
        assert read(options(good, "orders"), LogRange("orders", 1, 1)) == [1]
        bad = server.url.replace("nats://", "nats://wrong@")
        with pytest.raises(UnauthenticatedError, match="refused these credentials"):
            read(options(bad, "orders"), LogRange("orders", 1, 1))


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
    assert query.awaitTermination(50)
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
