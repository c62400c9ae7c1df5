"""Offsets: how far a batch goes, and how it is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker import Extent
from penstock.errors import FailedPreconditionError
from penstock.spark.source.offsets import EARLIEST, LATEST, Position, advance, known, split

topics = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.tuples(st.integers(1, 500), st.integers(0, 500)),
    min_size=1,
)


@given(topics, st.integers(1, 100), st.none() | st.integers(1, 20))
def test_a_split_covers_every_sequence_once_and_keeps_its_limits(ranges, most, least):
    start = {topic: first for topic, (first, _) in ranges.items()}
    end = {topic: first + count for topic, (first, count) in ranges.items()}
    parts = split(start, end, most, least)
    covered = [(topic, n) for topic, low, high in parts for n in range(low, high + 1)]
    assert covered == [(t, n) for t in start for n in range(start[t], end[t])]
    assert all(high - low + 1 <= most for _, low, high in parts)
    total = sum(count for _, count in ranges.values())
    assert len(parts) >= min(least or 0, total) or len(start) > 1 or total < (least or 0) ** 2
    assert parts == split(start, end, most, least)


@given(topics, st.none() | st.integers(1, 50), st.none() | st.integers(1, 5000))
def test_a_batch_moves_keeps_its_limits_and_never_goes_too_far(ranges, rows, size):
    start = {topic: first for topic, (first, _) in sorted(ranges.items())}
    extents = {
        topic: Extent(1, first + count - 1, mean_bytes=10.0)
        for topic, (first, count) in ranges.items()
    }
    end = advance(start, extents, rows, size)
    assert list(end) == sorted(end)
    moved = sum(end[t] - start[t] for t in start)
    left = sum(count for _, count in ranges.values())
    assert all(start[t] <= end[t] <= extents[t].end for t in start)
    assert (moved > 0) == (left > 0)
    if rows is not None:
        assert moved <= rows
    if size is not None:
        assert moved * 10 <= size or moved == 1


def test_offsets_are_the_same_text_whatever_the_order_of_topics():
    assert json.dumps(known({"b": 2, "a": 1}, ("b", "a"))) == '{"a": 1, "b": 2}'


def test_a_topic_the_checkpoint_does_not_know_begins_at_its_beginning():
    assert known({"a": 5}, ("a", "b")) == {"a": 5, "b": 1}


def test_a_topic_the_options_do_not_name_is_an_error():
    with pytest.raises(FailedPreconditionError, match="no longer name"):
        known({"a": 5}, ("b",))


def test_positions_are_resolved_in_a_topic():
    extent = Extent(4, 8)
    assert [position.within("a", extent) for position in (EARLIEST, LATEST)] == [4, 9]
    named = Position(sequences={"a": 6, "b": -1})
    assert [named.within(topic, extent) for topic in ("a", "b", "c")] == [6, 9, 4]
