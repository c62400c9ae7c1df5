"""What sinks count in processes of their own, without Spark."""

import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from penstock.spark import sink_counts as counting
from penstock.spark.session.starting import _environment
from penstock.spark.sink_counts import SinkCount, count_sunk, counts_file, show_sinks, sink_counts


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "scratch", lambda: tmp_path)
    counts_file.cache_clear()
    yield counts_file()
    counts_file.cache_clear()


@pytest.fixture
def committing(file, monkeypatch):
    """As in a process that Spark starts."""
    monkeypatch.setenv(counting.PLACE, str(file))


def test_what_spark_starts_is_told_where_to_count(file, monkeypatch):
    seen = []
    with _environment("local[2]"):
        seen.append(counting.os.environ[counting.PLACE])
    assert seen == [str(file)]
    assert counting.PLACE not in counting.os.environ


@pytest.mark.usefixtures("committing")
def test_commits_add_up_by_topic_though_they_are_made_side_by_side():
    assert sink_counts() == {}

    def commit():
        for _ in range(100):
            count_sunk("orders", 9, 1)
            count_sunk("", 2, 0)

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sink_counts() == {"orders": SinkCount(3600, 400), "": SinkCount(800, 0)}


@pytest.mark.usefixtures("committing")
def test_counts_are_shown_among_the_metrics():
    registry = CollectorRegistry()
    for _ in range(2):
        show_sinks(registry)
    count_sunk("orders", 9, 1)
    shown = generate_latest(registry).decode()
    assert 'penstock_sink_rows_total{topic="orders"} 9.0' in shown
    assert 'penstock_sink_duplicates_total{topic="orders"} 1.0' in shown


@pytest.mark.usefixtures("committing")
def test_a_batch_is_committed_though_nobody_counts_any_more(file):
    file.unlink()
    count_sunk("orders", 9, 1)
    assert not file.exists()
    assert sink_counts() == {}


@pytest.mark.usefixtures("committing")
def test_a_batch_is_committed_though_a_full_disk_took_a_part_of_the_counts(file):
    count_sunk("orders", 9, 1)
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    count_sunk("orders", 9, 1)
    assert file.read_bytes() == whole[:-3]
    assert sink_counts() == {}


def test_nothing_is_counted_for_a_session_of_somebody_else():
    count_sunk("orders", 9, 1)
    assert sink_counts() == {}
