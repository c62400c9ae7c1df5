"""What the history says: reports over events whose times are known."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from penstock.cli.jobs.pipeline import pipeline
from penstock.errors import InvalidArgumentError
from penstock.jobs import (
    MEDIA,
    JobFailed,
    JobQueued,
    JobStage,
    MediaType,
    MetadataReady,
    TranscriptComplete,
)
from penstock.spark.jobs.analytics import REPORTS, answer, open_history
from penstock.spark.jobs.history import History, Told

START = datetime(2026, 3, 1, 23, 0, tzinfo=UTC)
pytestmark = pytest.mark.timeout(300)


def at(seconds):
    return START + timedelta(seconds=seconds)


def event(kind, job, seconds, **more):
    common = {
        "job_id": f"job_{job:032x}",
        "user_id": "ann",
        "media_type": MediaType.AUDIO,
        "run": 1,
        "at": at(seconds),
    }
    return kind(**{**common, **more})


QUEUED = JobStage.QUEUED
EVENTS = [
    event(JobQueued, 1, 0),
    event(JobQueued, 2, 1),
    event(MetadataReady, 1, 10, previous=QUEUED, took=4.0, retries=2),
    event(TranscriptComplete, 1, 40, previous=JobStage.METADATA_READY, took=20.0),
    event(JobFailed, 2, 21, previous=QUEUED, took=5.0, reason="malformed"),
    # In the next hour, of another day; and one that comes two minutes too late.
    event(JobQueued, 3, 3700),
    event(JobQueued, 4, 3580, media_type=MediaType.VIDEO),
]


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("analytics") / "history")
    made = History(folder, MEDIA)
    told = [Told(n + 1, e.at + timedelta(seconds=2), e) for n, e in enumerate(EVENTS)]
    made.append("events@1", told[:3])
    made.append("events@1", told[3:])
    return folder


@pytest.fixture
def ask(spark, history):
    open_history(spark, history)
    return lambda name, **more: [row.asDict() for row in answer(spark, name, **more).collect()]


def test_work_and_waiting_are_told_apart(ask):
    ready, complete = [row for row in ask("stages") if row["stage"] != "Failed"]
    assert (ready["stage"], ready["jobs"], ready["took_p50"]) == ("MetadataReady", 1, 4.0)
    assert ready["waited_p50"] == 6.0
    assert (complete["took_p95"], complete["waited_p95"]) == (20.0, 10.0)
    assert {row["hour"].hour for row in ask("hours")} == {23}


def test_failures_and_retries_are_counted_by_what_they_are(ask):
    [failed] = ask("failures")
    assert (failed["reason"], failed["after"], failed["jobs"]) == ("malformed", "Queued", 1)
    [again] = ask("retries")
    assert (again["stage"], again["jobs"], again["retries"]) == ("MetadataReady", 1, 2)


def test_throughput_is_by_the_hour(ask):
    by_hour = {(row["hour"].day, row["stage"]): row["jobs"] for row in ask("throughput")}
    assert by_hour == {
        (1, "Queued"): 3,
        (1, "MetadataReady"): 1,
        (1, "TranscriptComplete"): 1,
        (1, "Failed"): 1,
        (2, "Queued"): 1,
    }


def test_jobs_that_have_not_ended_are_waiting(ask):
    found = {(row["stage"], row["media_type"]): row["jobs"] for row in ask("waiting")}
    assert found == {("Queued", "audio"): 1, ("Queued", "video"): 1}


def test_lag_is_what_the_outbox_and_the_relay_took(ask):
    assert {row["p50"] for row in ask("lag")} == {2.0}


def test_an_event_is_late_by_the_watermark(ask):
    [late] = ask("late", watermark=60.0)
    assert (late["events"], late["latest"]) == (1, 120.0)
    assert ask("late", watermark=120.0) == []


def test_a_part_of_the_time_may_be_asked_for(spark, history):
    assert open_history(spark, history, since=at(3600)).count() == 1
    assert open_history(spark, history, until=at(10)).count() == 2
    assert open_history(spark, history, since=at(10), until=at(41)).count() == 3
    with pytest.raises(InvalidArgumentError, match="time zone"):
        open_history(spark, history, since=datetime(2026, 3, 1))  # noqa: DTZ001


def test_how_long_was_waited_is_not_known_where_the_step_before_is_left_out(spark, history):
    open_history(spark, history, since=at(10))
    found = {row.stage: row.waited_p50 for row in answer(spark, "stages").collect()}
    assert found == {"MetadataReady": None, "TranscriptComplete": 10.0, "Failed": None}


def test_a_report_that_there_is_not_is_refused(spark):
    with pytest.raises(InvalidArgumentError, match="stages, hours, throughput"):
        answer(spark, "weather")


def test_every_report_answers_on_an_old_history_without_its_columns(spark, tmp_path):
    """Histories of before `took` and `retries` have files without them."""
    from deltalake import DeltaTable, write_deltalake

    folder = str(tmp_path / "history")
    made = History(folder, MEDIA)
    old = made._rows("events@1", [Told(1, at(1), EVENTS[0])]).drop_columns(["took", "retries"])
    write_deltalake(folder, old, partition_by=["day"], name="penstock job events, schema 1")
    made.append("events@1", [Told(2, at(50), EVENTS[3])])
    assert {"took", "retries"} <= set(DeltaTable(folder).to_pyarrow_table().column_names)
    open_history(spark, folder)
    for name, report in REPORTS.items():
        found = answer(spark, name)
        assert report.bar in found.columns
        found.collect()
    assert [row.took_p50 for row in answer(spark, "stages").collect()] == [20.0]


def test_the_command_prints_tables_with_bars_or_json(spark, history, monkeypatch):
    class Borrowed:
        def __getattr__(self, name):
            return getattr(spark, name)

        def stop(self):
            """It is the tests'."""

    def report(*arguments):
        done = CliRunner().invoke(pipeline, ["report", history, *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    monkeypatch.setattr("penstock.spark.session", lambda *_, **__: Borrowed())
    shown = report("stages", "late", "--watermark", "1000")
    assert "Seconds of work, and of waiting for it" in shown
    assert "█" * 5 in shown
    assert "nothing." in shown
    told = report("failures", "--json", "--since", "2026-03-01T23:00:20+00:00")
    [found] = [json.loads(line) for line in told.splitlines()]
    assert found["report"] == "failures"
    assert [row["reason"] for row in found["rows"]] == ["malformed"]
