"""What rows are called that bring no id."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.sink.rows import Rows


def table(rows, *names):
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return pa.RecordBatch.from_pydict({name: list(found) for name, found in columns.items()})


def ids(batch, topic="out", query="q", number="1"):
    return [draft.message_id for _, draft in Rows(topic, query, number).drafts(batch)]


def of(data, **options):
    return ids(pa.RecordBatch.from_pydict({"data": data}), **options)


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=12), st.data())
def test_rows_have_the_same_ids_however_they_are_shared_out(data, chosen):
    cut = chosen.draw(st.integers(0, len(data)))
    shuffled = chosen.draw(st.permutations(sorted(set(data))))
    parts = [part for part in (shuffled[:cut], shuffled[cut:]) if part]
    assert sorted(name for part in parts for name in of(part)) == sorted(of(sorted(set(data))))


def test_equal_rows_of_a_task_are_messages_of_their_own():
    assert len(set(of([b"tick", b"tick", b"tock"]))) == 3


def test_equal_rows_of_two_batches_or_queries_are_messages_of_their_own():
    assert len({*of([b"tick"]), *of([b"tick"], number="2"), *of([b"tick"], query="p")}) == 3


NAMES = ("data", "topic", "sequence")


def test_a_row_with_its_place_in_the_source_is_called_the_same_in_any_batch():
    row = table([(b"a", "orders", 7)], *NAMES)
    assert ids(row) == ids(row, number="2")
    assert ids(row)[0].startswith("q-orders-7-")


@pytest.mark.parametrize("place", [(None, None), ("orders", None), (None, 7)])
def test_equal_rows_without_a_place_in_the_source_are_told_apart_by_their_batch(place):
    row = table([(b"a", *place)], *NAMES)
    assert ids(row) != ids(row, number="2")


def test_what_was_made_of_one_message_has_ids_of_its_own_whichever_task_has_it():
    one, other = table([(b"a", "orders", 7)], *NAMES), table([(b"b", "orders", 7)], *NAMES)
    assert ids(one) != ids(other)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("attributes", [("k", "1")], [("k", "2")]),
        ("ordering_key", "ann", "bob"),
        ("subject", "out.a", "out.b"),
    ],
)
def test_whatever_a_row_holds_makes_it_another(name, one, other):
    kind = pa.map_(pa.string(), pa.string()) if name == "attributes" else pa.string()
    made = [
        pa.RecordBatch.from_arrays(
            [pa.array([b"x"]), pa.array([value], kind)], names=["data", name]
        )
        for value in (one, other, one)
    ]
    first, second, third = (ids(batch) for batch in made)
    assert first != second and first == third


def test_an_id_that_a_row_brings_is_kept():
    assert ids(table([(b"a", "mine")], "data", "message_id")) == ["mine"]
