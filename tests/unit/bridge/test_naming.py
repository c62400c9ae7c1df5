"""Names that follow from two apps and a stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bridge.naming import Names, check_app, check_subject
from penstock.errors import InvalidArgumentError
from penstock.rules.wildcards import overlap

apps = st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True).filter(lambda name: name != "dlq")


def names(app="api", destination="worker", **options):
    return Names(app_name=app, destination_app=destination, **options)


def test_an_app_publishes_to_its_destination_and_receives_the_reverse():
    api = names()
    assert api.source_subject == "api.sync.worker"
    assert api.destination_subject == "worker.sync.api"
    assert api.dlq_subject == "api.sync.dlq"
    assert api.durable == "api-workers"
    assert api.delivery_subject == "worker.sync.api.worker"
    assert api.stream_name == "jetstream-bridge-stream"
    assert api.dlq_stream == "jetstream-bridge-stream-dlq"


@given(apps, apps)
def test_what_one_app_sends_is_what_the_other_receives_in_any_order(one, other):
    here, there = names(one, other), names(other, one)
    assert here.source_subject == there.destination_subject
    assert set(here.subjects) == set(there.subjects)
    assert set(here.dlq_subjects) == set(there.dlq_subjects)


@given(apps, apps)
def test_dead_letters_are_never_on_a_subject_of_events(one, other):
    both = names(one, other)
    assert not any(overlap(a, b) for a in both.subjects for b in both.dlq_subjects)


@pytest.mark.parametrize("wrong", ["", "a.b", "a b", "a*", ">", "a\r\n", "ünder", None, 3])
def test_an_app_is_one_plain_token(wrong):
    with pytest.raises(InvalidArgumentError, match="app_name cannot be"):
        check_app("app_name", wrong)


def test_no_app_is_called_like_the_dead_letters():
    with pytest.raises(InvalidArgumentError, match="dead letters"):
        names(destination="dlq")


@pytest.mark.parametrize("wrong", ["", "a..b", "a.*", "a.>", "a b", "a\tb", "a/b", "é", 7])
def test_subjects_have_no_wildcards_spaces_or_control_characters(wrong):
    with pytest.raises(InvalidArgumentError, match="is not allowed"):
        check_subject(wrong)


def test_a_subject_has_at_most_255_characters():
    assert check_subject("a" * 255)
    with pytest.raises(InvalidArgumentError, match="at most 255"):
        check_subject("a" * 256)
    with pytest.raises(InvalidArgumentError, match="at most 255"):
        names("a" * 130, "b" * 130)


@pytest.mark.parametrize("name", ["api-production", "api_staging", "api-dev"])
def test_an_app_named_after_its_environment_is_advised_against(name):
    [advice] = names(name).advice()
    assert repr(name) in advice and "'api'" in advice


@pytest.mark.parametrize("name", ["api", "production", "tester", "api-devices"])
def test_other_names_need_no_advice(name):
    assert names(name).advice() == []
