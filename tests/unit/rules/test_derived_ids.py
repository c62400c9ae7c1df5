"""Ids that follow from what a message came from."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.message import MAX_MESSAGE_ID_BYTES
from penstock.rules.derived_ids import derived_id

parts = st.lists(st.text(max_size=300), min_size=1, max_size=4)


def test_a_derived_id_can_be_read():
    assert derived_id("order-1", "billing", "0-0") == "order-1/billing/0-0"


@given(parts, parts)
def test_the_same_parts_give_the_same_id_and_others_another(one, other):
    assert derived_id(*one) == derived_id(*one)
    if one != other:
        assert derived_id(*one) != derived_id(*other)


@given(parts)
def test_a_derived_id_fits_whatever_it_comes_from(one):
    assert len(derived_id(*one).encode(errors="replace")) <= MAX_MESSAGE_ID_BYTES
