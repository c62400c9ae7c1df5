"""Topics as tables."""

import datetime

import pytest
from pyspark.errors import AnalysisException, PySparkException

from penstock.brokers.nats.sync.ranges import narrowed
from penstock.rules.filters import parse_filter
from tests.support.nats_scenes import api, fill, make
from tests.support.servers import NatsServer
from tests.support.spark_scenes import numbers, table


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        make(running.url, "orders")
        fill(running.url, "orders", range(1, 1001))
        fill(running.url, "orders", [1001], attributes={"a b": "é"}, ordering_key="ann")
        yield running


def test_every_column_says_what_was_published(spark, server):
    rows = table(spark, server.url, "orders", includeHeaders="true").where("sequence >= 1000")
    plain, full = rows.orderBy("sequence").collect()
    assert (plain.topic, plain.sequence, plain.subject) == ("orders", 1000, "orders")
    assert (plain.message_id, plain.ordering_key) == ("orders/1000", None)
    assert (plain.attributes, bytes(plain.data)) == ({}, b"1000")
    assert plain.headers == {"Nats-Msg-Id": "orders/1000"}
    now = datetime.datetime.now()  # noqa: DTZ005
    assert abs(plain.publish_time - now) < datetime.timedelta(minutes=10)
    assert (full.message_id, full.ordering_key) == ("orders/1001", "ann")
    assert full.attributes == {"a b": "é"}
    assert full.headers == {
        "a%20b": "é",
        "Nats-Msg-Id": "orders/1001",
        "Penstock-Ordering-Key": "ann",
    }


def test_a_message_without_an_id_is_named_by_its_place(spark, server):
    make(server.url, "unnamed")
    with_no_id(server.url)
    [row] = table(spark, server.url, "unnamed", includeHeaders="true").collect()
    assert (row.message_id, row.headers) == ("unnamed-1", {})


def with_no_id(url):
    from penstock.brokers.nats.protocol.address import NatsOptions
    from penstock.brokers.nats.sync.connection import BlockingConnection

    with BlockingConnection(NatsOptions.of(url)) as connection:
        connection.ask("unnamed", b"", b"x")


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_a_table_is_every_message_once_in_order_however_it_is_cut(spark, server, partitions):
    frame = table(spark, server.url, "orders", minPartitions=partitions)
    assert numbers(frame) == list(range(1, 1002))
    assert frame.rdd.getNumPartitions() == partitions


def test_partitions_hold_no_more_than_they_are_allowed(spark, server):
    frame = table(spark, server.url, "orders", maxRecordsPerPartition=300)
    counts = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    assert sum(counts) == 1001
    assert max(counts) <= 300


def test_offsets_bound_a_table(spark, server):
    frame = table(
        spark,
        server.url,
        "orders",
        startingOffsets='{"orders": 10}',
        endingOffsets='{"orders": 13}',
    )
    assert numbers(frame) == [10, 11, 12]


def test_times_bound_a_table(spark, server):
    make(server.url, "timed")
    fill(server.url, "timed", range(5))
    [first] = table(spark, server.url, "timed", endingOffsets='{"timed": 2}').collect()
    after = first.publish_time.astimezone(datetime.UTC) + datetime.timedelta(microseconds=1)
    began = table(spark, server.url, "timed", endingTimestamp=after.isoformat())
    rest = table(spark, server.url, "timed", startingTimestamp=after.isoformat())
    assert began.count() >= 1
    assert sorted(numbers(began) + numbers(rest)) == list(range(5))


def test_several_topics_are_one_table(spark, server):
    make(server.url, "first-of-two", "second-of-two")
    fill(server.url, "first-of-two", [1, 2])
    fill(server.url, "second-of-two", [3])
    for option, value in (
        ("topics", "second-of-two,first-of-two"),
        ("subscribe", "second-of-two,first-of-two"),
        ("assign", '{"first-of-two": [0], "second-of-two": [0]}'),
        ("subscribePattern", "(first|second)-of-.*"),
    ):
        reader = spark.read.format("penstock").option("url", server.url)
        found = {
            (row.topic, bytes(row.data)) for row in reader.option(option, value).load().collect()
        }
        assert found == {("first-of-two", b"1"), ("first-of-two", b"2"), ("second-of-two", b"3")}


def test_a_pattern_that_nothing_matches_yet_is_an_empty_table(spark, server):
    reader = spark.read.format("penstock").option("url", server.url)
    assert reader.option("subscribePattern", "nothing-.*").load().count() == 0


def test_an_empty_topic_is_an_empty_table(spark, server):
    make(server.url, "empty")
    assert table(spark, server.url, "empty").count() == 0


def test_a_message_of_megabytes_is_read_whole(spark, server):
    make(server.url, "large")
    fill(server.url, "large", range(20), size=1_000_000)
    assert numbers(table(spark, server.url, "large")) == list(range(20))


def test_a_filter_on_attributes_is_applied(spark, server):
    make(server.url, "mixed")
    fill(server.url, "mixed", range(10), attributes={"stage": "a"})
    fill(server.url, "mixed", range(10, 20), attributes={"stage": "b"})
    frame = table(spark, server.url, "mixed", filter='attributes.stage = "b"')
    assert numbers(frame) == list(range(10, 20))


def test_a_filter_on_a_routed_attribute_is_applied_by_the_server_and_keeps_the_order(spark, server):
    make(server.url, "routed", routed_attributes=("stage",))
    for n in range(0, 30, 3):
        fill(server.url, "routed", [n], attributes={"stage": "a"})
        fill(server.url, "routed", [n + 1], attributes={"stage": "b"})
        fill(server.url, "routed", [n + 2], attributes={"stage": "c"})
    frame = table(
        spark, server.url, "routed", filter='attributes.stage = "a" OR attributes.stage = "b"'
    )
    assert numbers(frame) == [n for n in range(30) if n % 3 < 2]
    few = table(spark, server.url, "routed", filter='attributes.stage = "a"')
    assert numbers(few) == list(range(0, 30, 3))
    subjects = narrowed(
        "routed", api(server.url, "STREAM.INFO.routed"), parse_filter('attributes.stage = "a"')
    )
    assert subjects == ("routed", "routed.a")


def test_filters_pushed_down_give_the_same_rows(spark, server):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition, expected in [
            ("sequence > 998", [999, 1000, 1001]),
            ("sequence >= 1000 and sequence < 1001", [1000]),
            ("sequence = 5", [5]),
            ("sequence <= 2 and topic = 'orders'", [1, 2]),
            ("topic = 'other'", []),
            ("topic in ('orders', 'other') and sequence < 2", [1]),
            ("sequence < 4 and publish_time > timestamp '2020-01-01'", [1, 2, 3]),
            ("publish_time > timestamp '2100-01-01'", []),
        ]:
            # A frame of its own each: Spark 4.3 keeps what was pushed with the frame.
            frame = table(spark, server.url, "orders", pushFilters="true").where(condition)
            assert numbers(frame) == expected, condition
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_frame_that_was_filtered_once_is_still_whole(spark, server):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = table(spark, server.url, "orders")
        assert frame.where("sequence < 11").count() == 10
        assert frame.count() == 1001
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": ""}, "Set option 'url'"),
        ({"url": "memory://"}, "local:///DIR"),
        ({"url": "local://relative"}, "absolute path"),
        ({"topic": None}, "Set option 'topic'"),
        ({"topic": "nowhere"}, "Topic not found: 'nowhere'"),
        ({"topics": "orders"}, "not several"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"startingOffsets": "soon"}, "must be earliest, latest or sequences"),
        ({"startingOffsets": '{"others": 1}'}, "which is not read"),
        ({"startingTimestamp": "2026-01-01"}, "with a zone"),
        ({"minPartitions": "0"}, "above 0"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"filter": "stage = a"}, "does not parse at column 1"),
        ({"subscription": "billing"}, "mode=queue"),
        ({"mode": "queue", "topic": None}, "spoolLocation"),
    ],
)
def test_what_is_wrong_is_said_by_load(spark, server, options, says):
    given = {"url": server.url, "topic": "orders"} | options
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(AnalysisException) as raised:
        spark.read.format("penstock").options(**given).load()
    assert says in str(raised.value)


def test_a_server_that_is_not_there_is_said_by_load(spark):
    with pytest.raises(AnalysisException, match="is it running"):
        table(spark, "nats://127.0.0.1:1", "orders")


def test_a_schema_of_ones_own_is_refused(spark, server):
    reader = spark.read.format("penstock").schema("data binary")
    frame = reader.option("url", server.url).option("topic", "orders").load()
    with pytest.raises(PySparkException, match="columns of penstock are fixed"):
        frame.collect()


def test_sequences_that_are_gone_are_an_error_when_they_were_asked_for(spark, server):
    make(server.url, "purged")
    fill(server.url, "purged", range(1, 11))
    api(server.url, "STREAM.PURGE.purged", {"seq": 5})
    assert numbers(table(spark, server.url, "purged")) == [5, 6, 7, 8, 9, 10]
    asked = {"startingOffsets": '{"purged": 2}'}
    with pytest.raises(PySparkException, match="3 messages are gone"):
        table(spark, server.url, "purged", **asked).collect()
    rest = table(spark, server.url, "purged", failOnDataLoss="false", **asked)
    assert numbers(rest) == [5, 6, 7, 8, 9, 10]


def test_messages_deleted_one_by_one_are_not_missed(spark, server):
    make(server.url, "holes")
    fill(server.url, "holes", range(1, 11))
    for sequence in (3, 4, 10):
        api(server.url, "STREAM.MSG.DELETE.holes", {"seq": sequence})
    assert numbers(table(spark, server.url, "holes", minPartitions=3)) == [1, 2, 5, 6, 7, 8, 9]


def test_a_view_in_sql_is_selected_from_and_inserted_into(spark, server):
    make(server.url, "asked")
    fill(server.url, "asked", range(3))
    view = "VIEW asked USING penstock OPTIONS"
    options = f"(url '{server.url}', topic 'asked')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY {view} {options}")
    [count] = spark.sql("SELECT count(*) AS n FROM asked WHERE sequence > 1").collect()
    assert count.n == 2
    spark.sql(
        "INSERT INTO asked SELECT 'asked', 0L, 'asked', 'mine', null, map('k', 'v'), "
        "cast('x' AS binary), now()"
    )
    spark.sql(f"CREATE OR REPLACE TEMPORARY {view} {options}")
    [row] = spark.sql("SELECT * FROM asked WHERE message_id = 'mine'").collect()
    assert (bytes(row.data), row.attributes, row.sequence) == (b"x", {"k": "v"}, 4)
    spark.sql("DROP VIEW asked")


def test_a_table_in_sql_is_refused_and_the_view_is_named(spark, server):
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(
            f"CREATE TABLE forgetful USING penstock OPTIONS (url '{server.url}', topic 'orders')"
        )
