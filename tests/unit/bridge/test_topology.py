"""Which subjects a stream may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bridge.naming import Names
from penstock.bridge.topology import check_overlaps, missing, overlaps
from penstock.errors import FailedPreconditionError

NAMES = Names(app_name="api", destination_app="worker")


@pytest.mark.parametrize("held", ["api.sync.worker", "api.>", "*.sync.*", ">", "api.*.worker"])
def test_a_subject_that_another_stream_has_is_an_overlap(held):
    found = overlaps("bridge", NAMES.subjects, {"orders": ["orders.>", held]})
    assert [(one.subject, one.stream, one.theirs) for one in found][:1] == [
        ("api.sync.worker", "orders", held)
    ]


@pytest.mark.parametrize("held", ["api.sync", "api.*", "api.sync.worker.>", "other.sync.worker"])
def test_a_subject_beside_ours_is_no_overlap(held):
    check_overlaps("bridge", NAMES.subjects, {"orders": [held]})


def test_a_stream_does_not_overlap_itself():
    check_overlaps("bridge", NAMES.subjects, {"bridge": NAMES.subjects})


def test_an_overlap_says_whose_it_is_and_what_to_do():
    with pytest.raises(FailedPreconditionError) as refused:
        check_overlaps("bridge", NAMES.subjects, {"orders": ["api.>"]})
    assert "'api.sync.worker' overlaps 'api.>' of stream 'orders'" in str(refused.value)
    assert "another stream_name" in str(refused.value)


@given(st.lists(st.sampled_from([*NAMES.subjects, "api.>", "*.sync.*", "other"])))
def test_what_is_missing_once_added_is_missing_no_more(held):
    added = missing(NAMES.subjects, held)
    assert missing(NAMES.subjects, [*held, *added]) == ()
    assert not set(added) & set(held)


def test_only_what_no_pattern_covers_is_missing():
    assert missing(NAMES.subjects, ["api.>"]) == ("worker.sync.api",)
    assert missing(NAMES.subjects, ["*.sync.*"]) == ()
