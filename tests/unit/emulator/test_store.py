"""What is kept beside the broker."""

import pytest

from penstock.emulator.store import Store
from penstock.errors import DataLossError, FailedPreconditionError


def test_what_is_put_is_there_for_the_next(tmp_path):
    store = Store(tmp_path / "deep" / "kept")
    store.put("a", b"1")
    store.put("b", b"2")
    store.drop("a")
    store.close()
    again = Store(tmp_path / "deep" / "kept")
    assert (again.get("a"), again.get("b"), list(again.keys(""))) == (None, b"2", ["b"])
    again.close()


def test_one_has_it_at_a_time(tmp_path):
    store = Store(tmp_path / "kept")
    with pytest.raises(FailedPreconditionError, match="Another emulator has"):
        Store(tmp_path / "kept")
    store.close()
    Store(tmp_path / "kept").close()


def test_a_damaged_file_says_what_is_in_it_and_what_to_do(tmp_path):
    store = Store(tmp_path / "kept")
    store.put("a", b"1" * 100)
    store.close()
    (tmp_path / "kept").write_bytes((tmp_path / "kept").read_bytes()[:20])
    with pytest.raises(DataLossError, match=r"is damaged .* move it away"):
        Store(tmp_path / "kept")
