"""Settlements that an earlier one of their call has made pointless."""

import pytest

from penstock.message import Settlement, Verb
from penstock.rules.repeats import repeats


@pytest.mark.parametrize(
    ("verbs", "late"),
    [
        ([], set()),
        ([("a", Verb.ACK, None), ("b", Verb.ACK, None)], set()),
        ([("a", Verb.ACK, None), ("a", Verb.ACK, None), ("a", Verb.NACK, None)], {1, 2}),
        ([("a", Verb.EXTEND, 5.0), ("a", Verb.ACK, None), ("a", Verb.EXTEND, 5.0)], {2}),
        ([("a", Verb.EXTEND, 0.0), ("b", Verb.ACK, None), ("a", Verb.ACK, None)], {2}),
        ([("a", Verb.RELEASE, None), ("a", Verb.REJECT, None)], {1}),
    ],
)
def test_only_what_follows_an_end_is_late(verbs, late):
    assert repeats([Settlement(*one) for one in verbs]) == late
