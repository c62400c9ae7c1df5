"""Patterns of subjects, against a second and slower reading of what NATS says of them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.rules.wildcards import covers, matches, overlap

TOKENS = st.sampled_from(["a", "b", "sync"])
subjects = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
patterns = st.builds(
    lambda tokens, end: ".".join([*tokens, *end]),
    st.lists(TOKENS | st.just("*"), min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
) | st.just(">")
# Every subject of up to five tokens of an alphabet with one more letter than the patterns use.
ALL = [
    ".".join(tokens)
    for length in range(1, 6)
    for tokens in itertools.product(["a", "b", "sync", "z"], repeat=length)
]


def slowly_matches(pattern, subject):
    if not pattern:
        return not subject
    if not subject:
        return False
    if pattern == [">"]:
        return True
    return pattern[0] in ("*", subject[0]) and slowly_matches(pattern[1:], subject[1:])


def stands_for(pattern):
    return {subject for subject in ALL if slowly_matches(pattern.split("."), subject.split("."))}


@pytest.mark.parametrize(
    ("pattern", "subject", "does"),
    [
        ("api.*.worker", "api.sync.worker", True),
        ("api.>", "api.sync.worker", True),
        ("api.*", "api.sync.worker", False),
        ("api.>", "api", False),
        (">", "api", True),
        ("api.sync.worker", "api.sync.worker", True),
        ("api.sync", "api.sync.worker", False),
    ],
)
def test_a_star_is_one_token_and_a_tail_is_one_or_more(pattern, subject, does):
    assert matches(pattern, subject) is does


@given(patterns, subjects)
def test_matching_agrees_with_the_slow_reading_in_any_order(pattern, subject):
    assert matches(pattern, subject) is slowly_matches(pattern.split("."), subject.split("."))


@given(patterns, patterns)
def test_two_patterns_overlap_if_and_only_if_a_subject_is_in_both(one, other):
    shared = stands_for(one) & stands_for(other)
    assert overlap(one, other) is overlap(other, one) is bool(shared)


@given(patterns, patterns)
def test_a_pattern_covers_another_if_and_only_if_it_has_all_its_subjects(one, other):
    assert covers(one, other) is (stands_for(other) <= stands_for(one))
