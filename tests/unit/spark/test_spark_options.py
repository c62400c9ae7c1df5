"""What a broker offers decides how it is read."""

import pytest

from penstock.connect import BrokerKind, register_broker
from penstock.errors import InvalidArgumentError, UnimplementedError
from penstock.spark.jobs.workplace import Workplace
from penstock.spark.options import SinkOptions, SourceOptions
from penstock.spark.ranges import open_patiently
from penstock.spark.schema import source_schema
from penstock.spark.source.stream import LogStreamReader
from tests.support.range_logs import FakeRangeLog


async def nobody(url, clock):
    raise AssertionError("options open nothing")


def test_a_broker_with_ranges_is_read_as_a_log_and_any_other_as_a_queue():
    register_broker("with-ranges", BrokerKind(nobody, lambda url: FakeRangeLog()))
    register_broker("without-ranges", BrokerKind(nobody))
    log = SourceOptions.of({"url": "with-ranges://", "topic": "orders"})
    queue = {"url": "without-ranges://", "subscription": "billing", "spoolLocation": "/spool"}
    assert (log.mode, SourceOptions.of(queue).mode) == ("log", "queue")
    asked = {**queue, "url": "with-ranges://", "mode": "queue"}
    assert SourceOptions.of(asked).mode == "queue"
    SinkOptions.of({"url": "with-ranges://", "topic": "orders", "fence": "true"})
    with pytest.raises(InvalidArgumentError, match="keeps no log"):
        SinkOptions.of({"url": "without-ranges://", "topic": "orders", "fence": "true"})
    with pytest.raises(UnimplementedError, match="without-ranges:// keeps no log"):
        open_patiently("without-ranges://", 1.0)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "Set option 'url'"),
        ("nowhere://", "No broker for nowhere://"),
        ("memory://", "is one process's own"),
        ("local://data", "absolute path"),
    ],
)
def test_an_address_that_sparks_processes_cannot_share_is_refused(url, says):
    with pytest.raises(InvalidArgumentError, match=says):
        SourceOptions.of({"url": url, "topic": "orders"})
    with pytest.raises(InvalidArgumentError, match=says):
        SinkOptions.of({"url": url, "topic": "orders"})


def read(**options):
    return SourceOptions.of({"url": "nats://nowhere", **options})


def test_several_topics_may_be_named_as_readers_of_kafka_do():
    assert read(subscribe="orders, bills").topics == ("bills", "orders")
    with pytest.raises(InvalidArgumentError, match="Set one of the options 'topic', 'topics'"):
        read(subscribe="orders", topic="bills")


def test_topics_may_be_assigned_or_matched_as_readers_of_kafka_do():
    assert read(assign='{"orders": [0], "bills": [0]}').topics == ("bills", "orders")
    found = read(subscribePattern="shop-.*")
    assert (found.topics, found.pattern) == ((), "shop-.*")


def test_where_to_begin_may_be_a_time_for_each_topic():
    found = read(topic="orders", startingOffsetsByTimestamp='{"orders": 1700000000000}')
    assert found.starting.moment_of("orders") == 1_700_000_000_000_000
    with pytest.raises(InvalidArgumentError, match="milliseconds by topic"):
        read(topic="orders", startingOffsetsByTimestamp="yesterday")
    with pytest.raises(InvalidArgumentError, match="Set one of the options 'startingOffsets'"):
        read(topic="orders", startingTimestamp="0", startingOffsets="earliest")


def test_the_last_moment_that_there_is_may_be_named():
    found = read(topic="orders", startingTimestamp="9999-12-31T23:59:59.999999Z")
    assert found.starting.moment_of("orders") == 253_402_300_799_999_999


def test_offsets_may_be_said_of_the_partition_that_a_topic_has():
    given = {"topics": "orders,bills", "endingOffsetsByTimestamp": '{"orders": {"0": 1000}}'}
    found = read(**given, startingOffsets='{"orders": {"0": 17}, "bills": {"0": -1}}')
    assert (found.starting.of("orders"), found.starting.of("bills")) == (17, -1)
    assert found.ending.moment_of("orders") == 1_000_000
    for wrong in ('{"orders": {"1": 17}}', '{"orders": {"0": 17, "1": 3}}', '{"orders": {}}'):
        with pytest.raises(InvalidArgumentError, match="sequences by topic"):
            read(topic="orders", startingOffsets=wrong)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("1h", 3600), ("2.5", 2.5)]
)
def test_a_delay_is_written_as_elsewhere(text, seconds):
    assert read(topic="orders", maxTriggerDelay=text).max_delay == seconds


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "orders", "path": "x", "provider": "penstock"}, "CREATE TEMPORARY VIEW"),
        ({"assign": '{"a": [0, 1]}'}, "one partition, and its number is 0"),
        ({"assign": "a"}, "partitions by topic"),
        ({"subscribePattern": "a(.*"}, "no regular expression"),
        ({"subscribePattern": "a.*", "topic": "orders"}, "not several"),
        ({"topic": "orders", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is above"),
    ],
)
def test_what_is_written_otherwise_elsewhere_is_named(options, says):
    with pytest.raises(InvalidArgumentError, match=says):
        read(**options)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("minPartitions", "²", "whole number"),
        ("maxTriggerDelay", "²s", "must be seconds"),
        ("startingTimestamp", "--5", "milliseconds"),
        ("startingTimestamp", "9" * 5000, "milliseconds"),
        # Microseconds, and nanoseconds.
        ("startingTimestamp", "1767225600000000", "milliseconds"),
        ("endingOffsetsByTimestamp", '{"orders": 1767225600000000000}', "milliseconds"),
        ("startingOffsets", '{"orders": true}', "sequences by topic"),
        ("startingOffsets", '{"orders": 0}', "sequences by topic"),
        ("startingOffsets", '{"@identity": 5, "orders": 1}', "sequences by topic"),
        ("endingOffsets", "{}", "sequences by topic"),
        ("endingOffsetsByTimestamp", "{}", "milliseconds by topic"),
    ],
)
def test_what_only_looks_like_a_number_or_a_time_is_refused(name, text, says):
    with pytest.raises(InvalidArgumentError, match=says):
        read(topic="orders", **{name: text})


def test_a_table_whose_options_spark_forgot_says_what_to_use():
    with pytest.raises(InvalidArgumentError, match="CREATE TEMPORARY VIEW"):
        SourceOptions.of({})
    with pytest.raises(InvalidArgumentError, match="CREATE TEMPORARY VIEW"):
        SourceOptions.of({"provider": "penstock"})


def test_what_travels_to_tasks_says_no_password_when_it_is_printed():
    given = {"url": "nats://ann:secret@nowhere", "topic": "orders"}
    settings = Workplace(b'{"database": "postgresql://ann:secret@nowhere"}', "shop:JOBS", "7")
    for printed in map(repr, (SourceOptions.of(given), SinkOptions.of(given), settings)):
        assert "secret" not in printed
        assert "orders" in printed or "shop:JOBS" in printed


def test_a_stream_has_no_end():
    ending = read(topic="orders", endingOffsets='{"orders": 7}')
    with pytest.raises(InvalidArgumentError, match="A stream has no end"):
        LogStreamReader(ending, source_schema(headers=False))
