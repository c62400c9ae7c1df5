"""What the driver plans and executors read, on a log in memory."""

import logging

import pyarrow as pa
import pytest

from penstock.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from penstock.spark.options import SourceOptions
from penstock.spark.schema import arrow_schema, source_schema, to_batch
from penstock.spark.source.offsets import EARLIEST, LATEST, Position
from penstock.spark.source.planner import Planner
from penstock.spark.source.reader import LogRange, columns_of
from tests.support.range_logs import FakeRangeLog, FakeTopic


def options(topics="orders", **given):
    return SourceOptions.of({"url": "nats://nowhere", "topics": topics, **given})


@pytest.fixture
def log():
    made = FakeRangeLog()
    made.fill("orders", 10)
    return made


def parts(ranges):
    return [(part.topic, part.first, part.last) for part in ranges]


def read(log, wanted, part):
    schema = arrow_schema(source_schema(headers=wanted.include_headers))
    found = (to_batch(schema, part.topic, columns) for columns in columns_of(log, wanted, part))
    return pa.Table.from_batches(found, schema)


def sequences(log, wanted, part):
    return read(log, wanted, part).column("sequence").to_pylist()


def test_positions_are_found_in_every_topic(log):
    log.fill("bills", 4)
    log.purge("orders", 3)
    planner = Planner(options("orders,bills"), log)
    assert planner.resolve(EARLIEST) == {"bills": 1, "orders": 3}
    assert planner.resolve(LATEST) == {"bills": 5, "orders": 11}
    assert planner.resolve(Position(sequences={"orders": 7})) == {"bills": 1, "orders": 7}
    assert planner.resolve(Position(moment_us=5_000_000)) == {"bills": 5, "orders": 5}
    by_topic = Position(moments_us={"orders": 6_000_000})
    assert planner.resolve(by_topic) == {"bills": 1, "orders": 6}


@pytest.mark.parametrize(
    "ending",
    [{"endingOffsets": '{"orders": 5}'}, {"endingOffsetsByTimestamp": '{"orders": 5000}'}],
)
def test_topics_that_an_end_does_not_name_are_read_to_their_own(log, ending):
    log.fill("bills", 4)
    wanted = options("orders,bills", **ending)
    assert Planner(wanted, log).resolve(wanted.ending) == {"bills": 5, "orders": 5}


def test_a_time_that_nothing_is_as_late_as_is_the_end_or_an_error_as_the_options_say(log):
    late = {"startingOffsetsByTimestamp": '{"orders": 11000}'}
    lenient = options(**late)
    assert Planner(lenient, log).resolve(lenient.starting) == {"orders": 11}
    strict = options(**late, startingOffsetsByTimestampStrategy="error")
    with pytest.raises(FailedPreconditionError, match="'orders' has no message as late as 11000"):
        Planner(strict, log).resolve(strict.starting)
    soon = options(startingTimestamp="10000", startingOffsetsByTimestampStrategy="error")
    assert Planner(soon, log).resolve(soon.starting) == {"orders": 10}


def test_what_a_filter_leaves_out_makes_no_ranges(log):
    for count, stage in ((6, "one"), (5, "other"), (3, "one"), (90, "other"), (1, "one")):
        log.fill("jobs", count, stage=stage)
    log.fill("more", 30, stage="other")
    wanted = options("jobs,more", filter='attributes.stage = "one"', maxRecordsPerPartition="4")
    planner = Planner(wanted, log)
    plain = planner.ranges({"jobs": 1, "more": 1}, {"jobs": 106, "more": 31})
    assert len(plain) == 27 + 8
    ranges = planner.with_rows(plain)
    assert parts(ranges) == [("jobs", 1, 3), ("jobs", 4, 6), ("jobs", 12, 105)]
    rows = [sequence for part in ranges for sequence in sequences(log, wanted, part)]
    assert rows == [*range(1, 7), *range(12, 15), 105]
    assert planner.with_rows(planner.ranges({"jobs": 15}, {"jobs": 100})) == []


def test_ranges_without_a_filter_are_not_read_to_plan_them(log):
    planner = Planner(options(maxRecordsPerPartition="4"), log)
    plain = planner.ranges({"orders": 1}, {"orders": 11})
    log.calls.clear()
    assert planner.with_rows(plain) == plain
    assert log.calls == []


def test_what_is_gone_before_ranges_are_made_of_its_rows_is_an_error(log):
    log.fill("jobs", 20, stage="one")
    planner = Planner(options("jobs", filter='attributes.stage = "one"'), log)
    plain = planner.ranges({"jobs": 1}, {"jobs": 21})
    log.purge("jobs", 6)
    with pytest.raises(DataLossError, match="begins at 6"):
        planner.with_rows(plain)


def test_a_batch_is_cut_into_ranges_of_the_topic_that_is_there(log):
    found = Planner(options(maxRecordsPerPartition="4"), log).ranges({"orders": 1}, {"orders": 11})
    assert parts(found) == [("orders", 1, 3), ("orders", 4, 6), ("orders", 7, 10)]
    assert {part.identity for part in found} == {log.topics["orders"].identity}


def test_what_was_promised_and_is_gone_is_an_error(log):
    log.purge("orders", 4)
    planner = Planner(options(), log)
    with pytest.raises(DataLossError, match="from 1 and begins at 4: 3 messages are gone"):
        planner.ranges({"orders": 1}, {"orders": 11})
    assert parts(planner.ranges({"orders": 1}, {"orders": 11}, promised=[])) == [("orders", 4, 10)]


def test_what_is_gone_is_logged_where_that_is_wanted(log, caplog):
    log.purge("orders", 4)
    planner = Planner(options(failOnDataLoss="false"), log)
    with caplog.at_level(logging.WARNING):
        assert parts(planner.ranges({"orders": 1}, {"orders": 11})) == [("orders", 4, 10)]
    assert "3 messages are gone" in caplog.text


def test_what_was_replaced_is_not_lost(log):
    log.purge("orders", 4)
    log.topics["orders"].is_compacted = True
    found = Planner(options(), log).ranges({"orders": 1}, {"orders": 11})
    assert parts(found) == [("orders", 4, 10)]
    assert sequences(log, options(), LogRange("orders", 1, 10)) == list(range(4, 11))


def test_a_batch_beyond_the_end_of_a_topic_is_refused(log):
    with pytest.raises(FailedPreconditionError, match="deleted and created again"):
        Planner(options(), log).ranges({"orders": 1}, {"orders": 12})


def test_a_topic_that_is_made_anew_under_a_query_is_noticed_though_it_is_longer(log):
    planner = Planner(options(), log)
    planner.extents()
    log.topics["orders"] = FakeTopic()
    log.fill("orders", 500)
    for call in (
        planner.extents,
        lambda: planner.resolve(LATEST),
        lambda: planner.ranges({"orders": 1}, {"orders": 11}),
    ):
        with pytest.raises(FailedPreconditionError, match="deleted and created again"):
            call()


def test_a_broker_that_cannot_tell_topics_apart_is_trusted(log):
    log.topics["orders"].identity = ""
    planner = Planner(options(), log)
    planner.extents()
    log.topics["orders"].identity = "now it can"
    assert planner.extents()["orders"].last == 10


def test_only_queues_are_consumed_and_each_sequence_once(log):
    log.fill("tasks", 10).is_queue = True
    planner = Planner(options("orders,tasks"), log)
    for committed in (4, 4, 3, 8):
        planner.consume({"orders": 5, "tasks": committed})
    assert [call for call in log.calls if "purge" in call] == ["purge tasks 4", "purge tasks 8"]


@pytest.mark.parametrize("size", [6, 500])
def test_a_queue_that_was_made_anew_keeps_what_nobody_has_read(log, size):
    log.topics["orders"].is_queue = True
    running = Planner(options(), log)
    running.consume({"orders": 5})
    log.topics["orders"] = FakeTopic()
    log.fill("orders", size).is_queue = True
    with pytest.raises(FailedPreconditionError, match="deleted and created again"):
        running.consume({"orders": 11})
    assert len(log.topics["orders"].messages) == size


def test_a_queue_that_was_made_anew_before_a_restart_keeps_what_nobody_has_read(log):
    log.topics["orders"].is_queue = True
    with pytest.raises(FailedPreconditionError, match="deleted and created again"):
        Planner(options(), log).consume({"orders": 12})
    assert len(log.topics["orders"].messages) == 10


@pytest.mark.parametrize(
    ("starting", "left"),
    [
        ({"startingOffsets": "latest"}, 10),
        ({"startingOffsets": '{"orders": 4}'}, 10),
        ({"startingTimestamp": "4000"}, 10),
        ({"startingOffsets": '{"orders": 1}'}, 3),
        ({"startingOffsets": '{"orders": -2}'}, 3),
        ({}, 3),
    ],
)
def test_what_lies_before_the_start_of_a_queue_is_read_by_nobody_and_stays(log, starting, left):
    log.topics["orders"].is_queue = True
    Planner(options(**starting), log).consume({"orders": 8})
    assert len(log.topics["orders"].messages) == left


def test_a_queue_takes_no_filter(log):
    log.topics["orders"].is_queue = True
    Planner(options(), log).check()
    with pytest.raises(InvalidArgumentError, match="consumed as a whole"):
        Planner(options(filter="attributes:kind"), log).check()


def test_offsets_of_a_topic_that_is_not_read_are_refused(log):
    with pytest.raises(InvalidArgumentError, match="'bills', which is not read"):
        Planner(options(startingOffsets='{"bills": 1}'), log).check()


def test_the_rows_of_a_range_are_its_messages(log):
    log.fill("orders", 2, kind="x")
    found = read(log, options(includeHeaders="true"), LogRange("orders", 9, 12)).to_pylist()
    assert [row["data"] for row in found] == [b"9", b"10", b"11", b"12"]
    assert [row["attributes"] for row in found] == [[], [], [("kind", "x")], [("kind", "x")]]
    assert [row["headers"] for row in found] == [[], [], [("kind", "x")], [("kind", "x")]]
    assert {row["topic"] for row in found} == {"orders"}


def test_only_rows_that_a_filter_lets_through_are_read(log):
    log.fill("orders", 5, kind="x")
    wanted = options(filter='attributes.kind = "x"')
    assert sequences(log, wanted, LogRange("orders", 5, 13)) == [11, 12, 13]


def test_a_range_that_is_gone_when_it_is_read_is_an_error(log):
    log.purge("orders", 5)
    with pytest.raises(DataLossError, match="up to 4 messages are gone"):
        sequences(log, options(), LogRange("orders", 1, 10))
    with pytest.raises(DataLossError, match="up to 2 messages are gone"):
        sequences(log, options(), LogRange("orders", 1, 2))


def test_messages_deleted_one_by_one_are_not_missed(log):
    del log.topics["orders"].messages[4]
    assert sequences(log, options(), LogRange("orders", 3, 5)) == [3, 5]


@pytest.mark.parametrize("count", [6, 10, 500])
def test_a_range_of_a_topic_that_was_made_anew_is_not_that_range(log, count):
    part = LogRange("orders", 1, 10, log.topics["orders"].identity)
    log.topics["orders"] = FakeTopic()
    log.fill("orders", count)
    with pytest.raises(FailedPreconditionError, match="deleted and created again"):
        sequences(log, options(), part)
