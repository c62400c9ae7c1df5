"""How far queries are behind, whatever they say of themselves."""

import json
import math
import os
import threading
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from penstock.errors import UnavailableError
from penstock.spark.jobs import lag, progress
from penstock.spark.jobs.lag import Lag, SpoolLags, TopicLags, Watching, committed, lag_of
from tests.support.range_logs import FakeRangeLog


@pytest.fixture
def log():
    """Message n of a topic was published n seconds after 1970 began."""
    made = FakeRangeLog()
    made.fill("orders", 10)
    made.fill("bills", 3)
    return made


def sample(metric, query):
    return REGISTRY.get_sample_value(f"penstock_pipeline_{metric}", {"query": query})


def checkpoint(folder, batch, offsets, *, done=True):
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs":1}}\n{offsets}')
    if done:
        (folder / "commits" / str(batch)).write_text("v1\n{}")
        (folder / "commits" / f".{batch}.crc").write_text("")


def test_what_waits_is_counted_and_the_oldest_of_it_is_as_old_as_the_lag(log):
    read = {"orders": 7, "bills": 4}
    assert lag_of(log, ("orders", "bills"), read, now=20.0) == Lag(4, 13.0)
    assert lag_of(log, ("bills",), read, now=20.0) == Lag(0, 0.0)


def test_a_topic_that_was_never_read_waits_as_a_whole_and_what_is_gone_does_not(log):
    log.purge("orders", 3)
    assert lag_of(log, ("orders",), {}, now=20.0) == Lag(8, 17.0)


def test_a_topic_that_was_made_again_waits_as_a_whole(log):
    assert lag_of(log, ("orders",), {"orders": 400}, now=20.0) == Lag(10, 19.0)


def test_a_topic_that_was_made_again_and_is_longer_waits_as_a_whole(log, tmp_path, monkeypatch):
    now = log.topics["orders"].identity
    for identity, waits in (("another", 10), (now, 3)):
        offset = json.dumps({"@identity": {"orders": identity}, "orders": 8})
        checkpoint(tmp_path / "outgrown", 0, offset)
        assert lag_of(log, ("orders",), committed(tmp_path / "outgrown"), 20.0).messages == waits
        monkeypatch.setitem(progress._reached, "outgrown", {})
        sources = [{"endOffset": offset, "latestOffset": offset, "numInputRows": 0}]
        told = {"runId": f"run of {identity}", "batchId": 0, "sources": sources}
        progress.report("outgrown", SimpleNamespace(lastProgress=told))
        assert lag_of(log, ("orders",), progress.reached("outgrown"), 20.0).messages == waits


def test_the_next_message_need_not_be_the_next_in_number(log):
    for sequence in (5, 6):
        del log.topics["orders"].messages[sequence]
    assert lag_of(log, ("orders",), {"orders": 5}, now=20.0).seconds == 13.0


def test_a_checkpoint_says_what_is_done_and_not_what_was_begun(tmp_path):
    assert committed(tmp_path) == {}
    checkpoint(tmp_path, 9, '{"orders": 5}')
    checkpoint(tmp_path, 10, '{"orders": 8}')
    checkpoint(tmp_path, 11, '{"orders": 12}', done=False)
    assert committed(tmp_path) == {"orders": 8}


def test_while_a_query_fails_what_comes_is_counted(log, tmp_path, monkeypatch):
    """Nothing but the topics is asked: the query has not said a word in this process."""
    monkeypatch.setattr("time.time", lambda: 60.0)
    checkpoint(tmp_path / "broken", 0, '{"orders": 10}')
    lags = TopicLags(log, {"broken": ["orders"]}, str(tmp_path))
    lags.look()
    assert (sample("behind", "broken"), sample("behind_seconds", "broken")) == (1, 50)
    log.fill("orders", 30)
    monkeypatch.setattr("time.time", lambda: 90.0)
    lags.look()
    assert (sample("behind", "broken"), sample("behind_seconds", "broken")) == (31, 80)


def test_what_a_query_has_told_goes_before_its_checkpoint(log, tmp_path, monkeypatch):
    monkeypatch.setitem(progress._reached, "telling", {"orders": 11})
    checkpoint(tmp_path / "telling", 0, '{"orders": 2}')
    TopicLags(log, {"telling": ["orders"]}, str(tmp_path)).look()
    assert (sample("behind", "telling"), sample("behind_seconds", "telling")) == (0, 0)


def test_what_nobody_can_tell_is_not_a_number(log, tmp_path, caplog):
    lags = TopicLags(log, {"cut-off": ["orders"]}, str(tmp_path))
    lags.look()
    assert sample("behind", "cut-off") == 10
    log.failures = [UnavailableError("the server is away")] * 2
    lags.look()
    lags.look()
    assert math.isnan(sample("behind", "cut-off"))
    [said] = [record.message for record in caplog.records]
    assert said.startswith("How far query cut-off is behind is not known")
    assert said.endswith("the server is away")
    far = TopicLags(log, {"far": ["orders"]}, "s3://bucket/checkpoints")
    far.look()
    assert math.isnan(sample("behind_seconds", "far"))


def test_one_query_that_is_not_known_is_told_once_though_others_are(log, tmp_path, caplog):
    lags = TopicLags(log, {"known": ["orders"], "lost": ["orders"]}, str(tmp_path))
    (tmp_path / "lost" / "commits").mkdir(parents=True)
    (tmp_path / "lost" / "commits" / "0").touch()
    for _ in range(3):
        lags.look()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert math.isnan(sample("behind", "lost")) and sample("behind", "known") == 10


def test_a_spool_has_a_size_and_an_age(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1000.0)
    for number, written in ((1, 900.0), (2, 950.0)):
        path = tmp_path / f"segment-{number:012d}.arrow"
        path.write_bytes(b"x" * 100)
        os.utime(path, (written, written))
    (tmp_path / "segment-000000000000.ids").write_text("[]")
    lags = SpoolLags({"spooled": [tmp_path, tmp_path / "not yet"]})
    lags.look()
    assert (sample("spool_bytes", "spooled"), sample("behind_seconds", "spooled")) == (200, 100)


def test_it_looks_again_and_again_and_ends_with_who_entered_it(monkeypatch):
    class Counted:
        looks, closed = 0, False
        seen = threading.Event()

        def look(self):
            self.looks += 1
            if self.looks == 3:
                self.seen.set()

        def close(self):
            self.closed = True

    monkeypatch.setattr(lag, "_EVERY", 0.001)
    made = Counted()
    with Watching(made) as watching:
        assert made.seen.wait(30)
    assert made.closed
    assert not watching._thread.is_alive()
