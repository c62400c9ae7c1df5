"""Retry and Reject: values that can be raised."""

import copy
import pickle

import pytest

from penstock import Reject, Retry
from penstock.errors import InvalidArgumentError


@pytest.mark.parametrize(
    "outcome", [Retry("live"), Retry(reason="live", after=3.0), Reject("gone", gave_up=True)]
)
def test_an_outcome_is_a_value_that_survives_travelling(outcome):
    for twin in (pickle.loads(pickle.dumps(outcome)), copy.copy(outcome)):  # noqa: S301
        assert twin == outcome
        assert hash(twin) == hash(outcome)
        assert twin is not outcome


def test_outcomes_differ_by_what_they_say():
    assert Retry("live") != Retry("live", after=1)
    assert Retry("live") != Reject("live")


def test_an_outcome_can_be_raised_and_taken_apart():
    with pytest.raises(Reject) as caught:
        raise Reject("no-such-customer")
    match caught.value:
        case Reject(reason, gave_up):
            assert (reason, gave_up, str(caught.value)) == ("no-such-customer", False, reason)


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), "soon"])
def test_a_time_that_never_comes_is_refused_where_it_is_said(after):
    with pytest.raises(InvalidArgumentError, match="Retry 'busy': `after` must be seconds"):
        Retry("busy", after)
