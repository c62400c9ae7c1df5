"""The history: what is in it says what is added."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.errors import FailedPreconditionError, NotFoundError
from penstock.jobs import MEDIA, JobFailed, JobQueued, MediaType
from penstock.spark.jobs.history import History, Told, check_there, compact, places_of

START = datetime(2026, 3, 1, 23, 59, 58, tzinfo=UTC)


def told(*sequences):
    """Events a second apart, across midnight."""
    made = []
    for at in sequences:
        common = {
            "job_id": f"00000000-0000-4000-8000-{at:012}",
            "user_id": "ann",
            "media_type": MediaType.AUDIO,
            "run": 1,
            "at": START + timedelta(seconds=at),
        }
        event = JobFailed(**common, reason="busy") if at % 2 else JobQueued(**common)
        made.append(Told(at, START, event))
    return made


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "history")


def rows(folder):
    table = DeltaTable(folder).to_pyarrow_table()
    return sorted(zip(*(table.column(n).to_pylist() for n in ("source", "sequence")), strict=True))


def test_an_event_is_a_row_with_its_facts_in_the_partition_of_its_day(folder):
    assert History(folder, MEDIA).append("events@1", told(1, 2)) == 2
    first, second = DeltaTable(folder).to_pyarrow_table().sort_by("sequence").to_pylist()
    assert (first["event"], first["reason"], first["attempts"]) == ("JobFailed", "busy", 1)
    assert (second["event"], second["reason"], second["stage"]) == ("JobQueued", None, "Queued")
    assert [str(row["day"]) for row in (first, second)] == ["2026-03-01", "2026-03-02"]
    assert second["at"] == START + timedelta(seconds=2)


@pytest.mark.parametrize("again", [(1, 2, 3), (1, 2), (2, 3), (3,)])
def test_what_is_there_is_not_added_again_however_it_is_cut(folder, again):
    history = History(folder, MEDIA)
    history.append("events@1", told(1, 2, 3))
    assert history.append("events@1", told(*again)) == 0
    assert history.append("events@1", told(*again, 4, 5)) == 2
    assert [sequence for _, sequence in rows(folder)] == [1, 2, 3, 4, 5]


def test_a_topic_that_was_made_anew_is_another_source(folder):
    history = History(folder, MEDIA)
    history.append("events@1", told(1, 2))
    history.append("events@2", told(1))
    assert rows(folder) == [("events@1", 1), ("events@1", 2), ("events@2", 1)]


def test_events_that_their_topic_has_forgotten_stay(folder):
    history = History(folder, MEDIA)
    history.append("events@1", told(1, 2, 3))
    # A new checkpoint, after retention: the topic begins at 3 now.
    history.append("events@1", told(3, 4))
    assert [sequence for _, sequence in rows(folder)] == [1, 2, 3, 4]


def test_compacting_changes_files_and_nothing_else(folder):
    history = History(folder, MEDIA)
    for at in range(1, 9):
        history.append("events@1", told(at))
    before = rows(folder)
    done = compact(folder, keep_hours=0)
    assert (done.before, done.after) == (8, 2)
    assert rows(folder) == before
    assert history.append("events@1", told(8, 9)) == 1


def test_whoever_compacts_meanwhile_does_not_get_in_the_way(folder, monkeypatch):
    history = History(folder, MEDIA)
    history.append("events@1", told(1))
    history.append("events@1", told(3))
    write = history._write

    def late(table, *rest):
        monkeypatch.setattr(history, "_write", write)
        compact(folder)
        write(table, *rest)

    monkeypatch.setattr(history, "_write", late)
    history.append("events@1", told(4))
    assert [sequence for _, sequence in rows(folder)] == [1, 3, 4]


def test_a_second_driver_adds_nothing_twice(folder, monkeypatch):
    one, other = History(folder, MEDIA), History(folder, MEDIA)
    one.append("events@1", told(1))
    write = one._write

    def late(table, *rest):
        monkeypatch.setattr(one, "_write", write)
        other.append("events@1", told(2, 3))
        write(table, *rest)

    monkeypatch.setattr(one, "_write", late)
    one.append("events@1", told(2))
    assert [sequence for _, sequence in rows(folder)] == [1, 2, 3]


def test_two_drivers_that_begin_a_history_at_the_same_moment_add_nothing_twice(folder, monkeypatch):
    one, other = History(folder, MEDIA), History(folder, MEDIA)
    write = one._write

    def late(table, *rest):
        monkeypatch.setattr(one, "_write", write)
        other.append("events@1", told(1, 2))
        write(table, *rest)

    monkeypatch.setattr(one, "_write", late)
    assert one.append("events@1", told(1, 2, 3)) == 1
    assert [sequence for _, sequence in rows(folder)] == [1, 2, 3]


def test_a_history_that_begins_in_the_middle_of_a_topic_says_so_once(folder, caplog):
    history = History(folder, MEDIA)
    history.append("events@1", told(1, 2))
    assert not caplog.records
    history.append("events@2", told(7, 8))
    history.append("events@2", told(8, 9))
    [said] = caplog.messages
    assert "begins with message 7 of events@2" in said


def test_a_history_of_an_earlier_version_is_refused(tmp_path):
    (tmp_path / "batch=0").mkdir()
    with pytest.raises(FailedPreconditionError, match="earlier version"):
        History(str(tmp_path), MEDIA)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (None, "no history of jobs"),
        ("sales", "no history of jobs .its name is 'sales'"),
        ("penstock job events, schema 2", "is of schema 2, which a later version"),
    ],
)
def test_a_table_that_is_another_s_is_left_alone(folder, name, says):
    write_deltalake(folder, pa.table({"sequence": [1]}), name=name)
    with pytest.raises(FailedPreconditionError, match=says):
        History(folder, MEDIA).append("events@1", told(1))
    with pytest.raises(FailedPreconditionError, match=says):
        compact(folder)
    assert DeltaTable(folder).version() == 0


def test_a_history_is_one_after_a_column_was_added_and_files_were_put_together(folder):
    history = History(folder, MEDIA)
    history.append("events@1", told(1))
    history._facts["colour"] = pa.string()
    assert history.append("events@1", told(2)) == 1
    compact(folder)
    assert history.append("events@1", told(2, 3)) == 1


def test_the_day_of_an_event_is_that_of_utc(folder):
    [one] = told(1)
    elsewhere = START.astimezone(timezone(timedelta(hours=2)))
    History(folder, MEDIA).append(
        "events@1", [one._replace(event=msgspec.structs.replace(one.event, at=elsewhere))]
    )
    [row] = DeltaTable(folder).to_pyarrow_table().to_pylist()
    assert (str(row["day"]), row["at"]) == ("2026-03-01", START)


@pytest.mark.parametrize("name", ["history", "jürgen grüße", "100% a#b?c"])
def test_files_are_where_it_says_whatever_their_folder_is_called(tmp_path, name):
    folder = str(tmp_path / name)
    History(folder, MEDIA).append("events@1", told(1, 2))
    link = tmp_path / "link"
    link.symlink_to(folder)
    for place in (folder, link):
        base, *files = places_of(check_there(str(place)))
        assert len(files) == 2
        assert all(Path(file).is_file() and file.startswith(base) for file in files), files


def test_what_is_not_there_cannot_be_compacted(folder):
    with pytest.raises(NotFoundError, match="--history makes it"):
        compact(folder)
