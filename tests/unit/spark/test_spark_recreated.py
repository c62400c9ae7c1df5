"""A topic that was deleted and made again while nobody read it, and is longer than it was."""

import json
import logging

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.errors import FailedPreconditionError
from penstock.spark.behind import offsets_of
from penstock.spark.options import SourceOptions
from penstock.spark.schema import source_schema
from penstock.spark.source.offsets import Place, place_of
from penstock.spark.source.planner import Planner
from penstock.spark.source.stream import LogStreamReader
from tests.support.range_logs import FakeRangeLog, FakeTopic

BEGIN = {"whenRecreated": "begin"}


@pytest.fixture
def log():
    made = FakeRangeLog()
    made.fill("orders", 10)
    return made


def started(log, **options):
    """A query that is started, or started again."""
    given = {"url": "nats://nowhere", "topic": "orders", **options}
    made = LogStreamReader(SourceOptions.of(given), source_schema(headers=False))
    made._open = Planner(made._options, log)
    return made


def latest(reading, start):
    """What Spark keeps of it is text."""
    return json.loads(json.dumps(reading.latestOffset(start, ReadAllAvailable())))


def read_all(log, **options):
    """Where a checkpoint is after a batch with everything."""
    reading = started(log, **options)
    return latest(reading, reading.initialOffset())


def remade(log, count, **said):
    log.topics["orders"] = made = FakeTopic()
    vars(made).update(said)
    log.fill("orders", count)


def parts(ranges):
    return [(part.topic, part.first, part.last) for part in ranges]


def test_offsets_say_which_topic_they_count_in_and_have_one_text(log):
    at = read_all(log)
    assert at == {"@identity": {"orders": log.topics["orders"].identity}, "orders": 11}
    log.fill("bills", 1)
    two = {"topics": "orders,bills", "startingOffsets": "latest"}
    given = {"url": "nats://nowhere", **two}
    reading = LogStreamReader(SourceOptions.of(given), source_schema(headers=False))
    reading._open = Planner(reading._options, log)
    first = reading.initialOffset()
    assert list(first["@identity"]) == ["bills", "orders"]
    assert json.dumps(latest(reading, first)) == json.dumps(first)
    assert offsets_of(json.dumps(first)) == {"bills": 2, "orders": 11}


@pytest.mark.parametrize("count", [3, 10, 500])
def test_a_restart_is_refused_with_what_to_do(log, count):
    at = read_all(log)
    remade(log, count)
    with pytest.raises(FailedPreconditionError, match=r"'orders' was deleted .* whenRecreated"):
        latest(started(log), at)


@pytest.mark.parametrize("lenient", [BEGIN, {"failOnDataLoss": "false"}])
def test_the_new_one_is_read_from_its_beginning_where_that_is_wanted(log, lenient, caplog):
    at = read_all(log)
    remade(log, 500)
    again = started(log, **lenient)
    with caplog.at_level(logging.WARNING):
        end = latest(again, at)
        assert offsets_of(end) == {"orders": 501}
        assert parts(again.partitions(at, end)) == [("orders", 1, 500)]
    assert caplog.text.count("deleted and created again") == 1
    # Run again after a crash, it is the same batch; and the next begins where it ended.
    assert parts(started(log, **lenient).partitions(at, end)) == [("orders", 1, 500)]
    log.fill("orders", 2)
    more = latest(again, end)
    assert parts(again.partitions(end, more)) == [("orders", 501, 502)]


def test_one_that_is_made_again_under_a_query_is_gone_on_with(log):
    running = started(log, **BEGIN)
    at = latest(running, running.initialOffset())
    remade(log, 4)
    end = latest(running, at)
    assert parts(running.partitions(at, end)) == [("orders", 1, 4)]


def test_a_batch_that_was_planned_before_has_nothing_left(log):
    begin = started(log).initialOffset()
    end = read_all(log)
    remade(log, 500)
    with pytest.raises(FailedPreconditionError, match="deleted and created again"):
        started(log).partitions(begin, end)
    again = started(log, **BEGIN)
    assert parts(again.partitions(begin, end)) == []
    assert offsets_of(latest(again, end)) == {"orders": 501}


def test_what_is_gone_of_the_new_one_was_never_promised(log):
    at = read_all(log)
    remade(log, 50)
    log.purge("orders", 31)
    again = started(log, **BEGIN)
    assert parts(again.partitions(at, latest(again, at))) == [("orders", 31, 50)]


@pytest.mark.parametrize("told", [{"orders": 5}, {"orders": 5, "@identity": {}}])
def test_a_checkpoint_of_an_earlier_version_is_gone_on_with(log, told):
    reading = started(log)
    end = latest(reading, told)
    assert end == {"@identity": {"orders": log.topics["orders"].identity}, "orders": 11}
    assert parts(reading.partitions(told, end)) == [("orders", 5, 10)]
    with pytest.raises(FailedPreconditionError, match="the checkpoint at 11"):
        latest(started(log), {"orders": 12})


def test_a_checkpoint_beyond_the_end_is_an_error_also_where_all_that_is_there_is_read(log):
    """The server is that of an older backup: it is the same topic, and shorter."""
    at = read_all(log)
    log.topics["orders"].last = 7
    again = started(log)
    again.prepareForTriggerAvailableNow()
    with pytest.raises(FailedPreconditionError, match="the checkpoint at 10"):
        latest(again, at)


def test_a_broker_that_cannot_tell_topics_apart_has_offsets_as_they_were(log):
    log.topics["orders"].identity = ""
    assert read_all(log) == {"orders": 11}


def test_a_queue_that_was_made_again_keeps_what_nobody_has_read(log):
    log.topics["orders"].is_queue = True
    at = read_all(log)
    remade(log, 500, is_queue=True)
    with pytest.raises(FailedPreconditionError, match="deleted and created again"):
        latest(started(log), at)
    again = started(log, **BEGIN)
    end = latest(again, at)
    assert len(log.topics["orders"].messages) == 500
    log.fill("orders", 1)
    latest(again, end)
    assert parts(again.partitions(end, latest(again, end))) == [("orders", 501, 501)]
    assert len(log.topics["orders"].messages) == 1


def test_what_a_query_said_of_its_progress_is_where_another_may_begin(log):
    at = read_all(log, maxOffsetsPerTrigger="4")
    begin = {"startingOffsets": json.dumps(at)}
    assert started(log, **begin).initialOffset() == at
    remade(log, 500)
    with pytest.raises(FailedPreconditionError, match="deleted and created again"):
        started(log, **begin).initialOffset()
    assert offsets_of(started(log, **begin, **BEGIN).initialOffset()) == {"orders": 1}


def test_a_place_is_the_same_when_it_is_read_again():
    place = Place({"bills": 2, "orders": 3}, {"orders": "x"})
    assert place_of(json.loads(json.dumps(place.to_json()))) == place
