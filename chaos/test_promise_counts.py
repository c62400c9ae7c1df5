"""What `test_promises.py` calls broken, and what it does not."""

import pytest

from chaos.promise_counts import LATE, KeptAcks, Kill, Line, count, read_diary, stories
from penstock.message import Record

RECORDS = [Record(at, f"m{at}", b"m%d" % at, {}, "key", "promised", 0) for at in (1, 2, 3)]
# The server was killed at 1000 s, seen to be dead at 1001 s and started at 1002 s.
SECOND = 10**9
NOTHING, ALL = KeptAcks(0, 3, frozenset({1, 2, 3})), KeptAcks(3, 3, frozenset())


def killed(kept):
    return [Kill(1000 * SECOND, 1001 * SECOND, 1002 * SECOND, kept)]


def handled(*moments, who="m1"):
    """Begun and done in turn, at these seconds."""
    return [
        Line(int(at * SECOND), ("begun", "done")[n % 2], who, "", "consume-2")
        for n, at in enumerate(moments)
    ]


def test_what_a_server_had_not_kept_when_it_was_killed_is_forgotten_however_long_before():
    counts = count(handled(990, 995, 1003), RECORDS, killed(NOTHING))
    assert (counts.forgotten, counts.suspects) == (["m1"], [])


@pytest.mark.parametrize(
    ("moments", "kept"),
    [
        ((999, 1000, 1003), ALL),  # It had it.
        ((999, 1000, 1003), None),  # Others had it.
        ((990, 991, 992), NOTHING),  # It came again before the server was killed.
        ((1002, 1003, 1004), NOTHING),  # The one after it confirmed the ack.
    ],
)
def test_what_comes_again_for_any_other_reason_is_doubled(moments, kept):
    counts = count(handled(*moments), RECORDS, killed(kept))
    assert (counts.forgotten, counts.doubled) == ([], ["m1"])


def test_a_confirmation_may_be_written_down_when_the_next_server_starts():
    moments = 999, (1002 * SECOND + LATE) / SECOND - 0.1, 1004
    assert count(handled(*moments), RECORDS, killed(NOTHING)).forgotten == ["m1"]


def test_what_is_stored_twice_or_nowhere_or_in_disorder_is_told_apart():
    lines = [
        Line(1, "acked", "m1", "", "produce-0"),
        Line(2, "acked", "lost", "", "produce-0"),
        *handled(3, 4, who="m2"),
        *handled(5, 6, who="m1"),
    ]
    counts = count(lines, [*RECORDS, RECORDS[2]], [])
    assert (counts.missing, counts.out_of_order, counts.stored_twice) == (["lost"], ["m1"], ["m3"])


def test_a_story_has_the_faults_of_its_time_and_what_the_server_knew(tmp_path):
    diary = tmp_path / "faults.diary"
    diary.write_text(f"{1000 * SECOND} kill tests\n")
    lines = sorted([*handled(990, 995, 1003), *read_diary(diary)])
    kills = killed(ALL)
    told = stories(count(lines, RECORDS, kills), lines, RECORDS, kills)
    assert "m1, stored at [1]:" in told
    assert told.index("faults: kill tests") > told.index("consume-2: done")
    assert "a server killed at 1001.000 had kept its ack" in told


@pytest.mark.parametrize(
    ("state", "has"),
    [
        # Nothing pending up to 3132; and 3150 pending, of 3150 that were delivered.
        ("1602bd18bc18bd18bc180000", {3132: True, 3133: False}),
        ("1602ce18cd18cf18ce18019c9ed9af0d01010200", {3149: True, 3150: False, 3151: False}),
    ],
)
def test_the_acks_that_a_server_keeps_are_read_from_its_file(tmp_path, state, has):
    file = tmp_path / "o.dat"
    file.write_bytes(bytes.fromhex(state))
    kept = KeptAcks.read(file)
    assert {sequence: kept.has(sequence) for sequence in has} == has
