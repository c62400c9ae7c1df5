"""What the projection does with a batch, without Spark around it."""

from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pytest
from prometheus_client import REGISTRY

from penstock.errors import DataLossError, FailedPreconditionError
from penstock.jobs import MEDIA
from penstock.jobs.pipeline.media import MEDIA_REFERENCE
from penstock.message import Draft
from penstock.spark.jobs.event_source import EventSource
from penstock.spark.jobs.history import check_there
from penstock.spark.jobs.projection import Project
from penstock.spark.options import SourceOptions
from penstock.spark.source.reader import LogRange
from tests.support.job_samples import EVENTS
from tests.support.range_logs import FakeRangeLog, FakeTopic

TOPIC = "projection-test"
OPTIONS = {"url": "nats://nowhere", "topics": TOPIC}


class Place:
    """A workplace whose read model is a list."""

    pipeline = MEDIA_REFERENCE

    def __init__(self):
        self.applied = []

    def runner(self):
        return SimpleNamespace(apply=self.applied.append)


@pytest.fixture
def log(monkeypatch):
    made = FakeRangeLog()
    monkeypatch.setattr("penstock.spark.source.reader.open_patiently", lambda *_, **__: made)
    topic = made.fill(TOPIC, 0)
    for event in EVENTS.values():
        topic.add(MEDIA.codec.encode_event(event))
    topic.add(Draft(b"no event"))
    return made


def batch_of(first, last, identity=""):
    """As Spark brings it: what the reader gave for the partitions, in any order."""
    reader = EventSource(OPTIONS).streamReader(None)
    middle = (first + last) // 2
    ends = ((middle + 1, last), (first, middle))
    parts = [LogRange(TOPIC, low, high, identity) for low, high in ends]
    rows = [batch for part in parts for batch in reader.read(part)]
    return SimpleNamespace(toArrow=lambda: pa.Table.from_batches(rows))


def test_the_driver_reads_what_a_batch_names_once_and_in_order(log, caplog):
    place = Place()
    count = len(EVENTS) + 1
    project = Project(place, TOPIC, log=SourceOptions.of(OPTIONS))
    project(batch_of(1, count), 0)
    assert place.applied == [list(EVENTS.values())]
    assert log.calls == ["read 1"]
    assert "1 messages of batch 0" in caplog.text
    project(batch_of(2, 3), 1)
    assert place.applied[1:] == [list(EVENTS.values())[1:3]]


def test_events_that_come_again_are_counted(log):
    def repeated():
        found = REGISTRY.get_sample_value(
            "penstock_pipeline_repeated_total", {"query": "projection"}
        )
        return found or 0

    project = Project(Place(), TOPIC, log=SourceOptions.of(OPTIONS))
    log.topics[TOPIC].identity = "counted"
    before = repeated()
    project(batch_of(1, 4, "counted"), 0)
    assert repeated() == before
    project(batch_of(1, 5, "counted"), 0)
    assert repeated() == before + 4


def test_a_batch_whose_events_are_gone_fails(log):
    project = Project(Place(), TOPIC, log=SourceOptions.of(OPTIONS))
    log.purge(TOPIC, 3)
    with pytest.raises(DataLossError):
        project(batch_of(1, 4), 0)


def test_a_batch_of_nothing_is_nothing_to_do(log):
    place = Place()
    project = Project(place, TOPIC, log=SourceOptions.of(OPTIONS))
    empty = pa.table({"sequence": pa.array([], pa.int64())})
    project(SimpleNamespace(toArrow=lambda: empty), 0)
    assert (place.applied, log.calls) == ([], [])


def test_events_go_to_the_history_under_the_topic_that_their_batch_was_planned_with(
    log, tmp_path, monkeypatch
):
    history = str(tmp_path / "history")
    project = Project(Place(), TOPIC, history, SourceOptions.of(OPTIONS))
    old = log.topics[TOPIC]
    project(batch_of(1, 4, old.identity), 0)
    log.topics[TOPIC] = new = FakeTopic()
    for event in (*EVENTS.values(), *EVENTS.values()):
        new.add(MEDIA.codec.encode_event(event))
    with pytest.raises(FailedPreconditionError, match="deleted and created again"):
        project(batch_of(5, 8, old.identity), 1)
    with pytest.raises(FailedPreconditionError, match="deleted and created again"):
        project(batch_of(1, 4, old.identity), 1)
    project(batch_of(1, 4, new.identity), 1)
    rows = check_there(history).to_pyarrow_table()
    assert Counter(rows.column("source").to_pylist()) == {
        f"{TOPIC}@{old.identity}": 4,
        f"{TOPIC}@{new.identity}": 4,
    }
