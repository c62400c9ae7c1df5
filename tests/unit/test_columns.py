"""Messages side by side."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import Columns, merged


def columns(sequences):
    """Rows that can be told apart; some have what few have."""
    made = Columns()
    for row, sequence in enumerate(sequences):
        made.sequences.append(sequence)
        made.ids.append(b"id-%d" % sequence)
        made.subjects.append(b"s")
        made.published_us.append(sequence * 10)
        made.data.append(b"%d" % sequence)
        if sequence % 3 == 0:
            made.keys[row] = f"key-{sequence}"
        if sequence % 2 == 0:
            made.attributes[row] = {"n": str(sequence)}
            made.headers[row] = {"h": str(sequence)}
    return made


def rows(found):
    return [
        (
            *(found.sequences[row], found.ids[row], found.subjects[row], found.published_us[row]),
            *(found.data[row], found.keys.get(row), found.attributes.get(row)),
            found.headers.get(row),
        )
        for row in range(len(found))
    ]


def whole(batches):
    found = Columns()
    for batch in batches:
        found.extend(batch)
    return found


owners = st.lists(st.integers(0, 3), max_size=60)


@given(owners, st.integers(1, 7))
def test_parts_of_a_range_are_merged_in_order(owners, size):
    parts = [[n for n, owner in enumerate(owners) if owner == part] for part in range(4)]
    sources = [
        iter([columns(part[at : at + size]) for at in range(0, len(part), size)]) for part in parts
    ]
    batches = list(merged(sources))
    assert all(batches), "every batch has a message"
    assert rows(whole(batches)) == rows(columns(range(len(owners))))


@given(st.lists(st.integers(1, 50), unique=True).map(sorted), st.integers(0, 51))
def test_a_cut_keeps_every_row_on_its_side(sequences, last):
    low, high = columns(sequences).cut(last)
    assert rows(low) == rows(columns([n for n in sequences if n <= last]))
    assert rows(high) == rows(columns([n for n in sequences if n > last]))


def test_rows_are_chosen_by_their_attributes():
    found = columns(range(10)).matching(lambda attributes: attributes.get("n", "9") > "5")
    assert rows(found) == rows(columns([1, 3, 5, 6, 7, 8, 9]))
    assert not columns(range(10)).matching(lambda _: False)
