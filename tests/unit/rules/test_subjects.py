import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import TopicConfig
from penstock.errors import InvalidArgumentError
from penstock.rules.filters import parse_filter
from penstock.rules.subjects import routed_subject, subject_filters

ROUTED = ("stage", "kind")


def test_attributes_become_tokens():
    assert routed_subject("jobs", ROUTED, {"stage": "Queued", "kind": "audio"}) == (
        "jobs.Queued.audio"
    )
    assert routed_subject("jobs", ROUTED, {"kind": "a.b *>"}) == "jobs._.a%2Eb%20%2A%3E"
    assert routed_subject("jobs", (), {"kind": "x"}) == "jobs"


@given(st.lists(st.none() | st.text(max_size=6), min_size=2, max_size=2))
def test_different_values_never_share_a_subject(values):
    pair = [{"k": value} if value is not None else {} for value in values]
    subjects = [routed_subject("jobs", ("k",), attributes) for attributes in pair]
    assert (subjects[0] == subjects[1]) == (pair[0] == pair[1])
    for subject in subjects:
        assert len(subject.split(".")) == 2
        assert subject.split(".")[1]
        assert not set(subject) & set("*> \t\r\n")


@pytest.mark.parametrize(
    ("text", "subjects"),
    [
        ('attributes.stage = "Queued"', ["jobs", "jobs.Queued.*"]),
        ('attributes.kind = "audio"', ["jobs", "jobs.*.audio"]),
        (
            'attributes.stage = "Queued" AND attributes.kind = "audio"',
            ["jobs", "jobs.Queued.audio"],
        ),
        (
            'attributes.stage = "A" OR attributes.stage = "B"',
            ["jobs", "jobs.A.*", "jobs.B.*"],
        ),
        ('attributes.stage = "A" AND attributes:other', ["jobs", "jobs.A.*"]),
        ('attributes.stage = "A" AND attributes.stage = "B"', ["jobs"]),
        ('attributes.other = "A"', []),
        ('attributes.stage != "A"', []),
        ('attributes.stage = "A" OR attributes.kind = "B"', []),
        ("attributes:stage", []),
    ],
)
def test_filters_become_subjects_where_they_can(text, subjects):
    assert subject_filters("jobs", ROUTED, parse_filter(text)) == subjects


@pytest.mark.parametrize("routed", ["stage", ["stage"], ("",), (5,)])
def test_routes_that_are_none_are_refused(routed):
    with pytest.raises(InvalidArgumentError, match="routed_attributes"):
        TopicConfig(name="topic", routed_attributes=routed)
