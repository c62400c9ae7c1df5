"""Attributes as Arrow has them, read at once."""

import pyarrow as pa
import pytest

from penstock.spark.jobs.columns import attributes_of

MAP = pa.map_(pa.string(), pa.string())
ROWS = [{"a": "1", "b": "2"}, {}, {"c": ""}, None, {"d": "4", "e": "5", "f": "6"}]
COLUMN = pa.array([None if row is None else list(row.items()) for row in ROWS], MAP)


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("count", range(6))
def test_each_row_has_its_own_whatever_part_of_a_column_is_read(first, count):
    wanted = [row or {} for row in ROWS[first : first + count]]
    assert attributes_of(COLUMN.slice(first, count)) == wanted


def test_a_column_in_several_pieces_is_read_in_order():
    pieces = pa.chunked_array([COLUMN.slice(3), COLUMN.slice(0, 2), COLUMN.slice(5)])
    assert attributes_of(pieces) == [{}, ROWS[4], ROWS[0], {}]


def test_a_sorted_table_keeps_attributes_with_their_rows():
    table = pa.table({"sequence": [3, 1, 2], "attributes": COLUMN.slice(2)}).sort_by("sequence")
    assert attributes_of(table.column("attributes")) == [{}, ROWS[4], ROWS[2]]
