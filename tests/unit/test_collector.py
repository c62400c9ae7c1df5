"""What the garbage collector of a process of ours leaves alone."""

import gc

import pytest

from penstock import collector


@pytest.fixture(autouse=True)
def its_own_collector():
    """Others in this process have theirs as it was."""
    thresholds = gc.get_threshold()
    collector.keep_what_is_loaded.cache_clear()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_what_is_loaded_is_left_alone_and_nothing_later():
    loaded, before = [[] for _ in range(10_000)], gc.get_freeze_count()
    collector.keep_what_is_loaded()
    kept = gc.get_freeze_count()
    later = [[] for _ in range(10_000)]
    collector.keep_what_is_loaded()
    assert kept >= before + len(loaded)
    assert gc.get_freeze_count() < kept + len(later)


def test_garbage_that_refers_to_itself_is_still_found():
    collector.look_rarely()
    found = []
    for _ in range(100_000):
        ring = _Ring(found)
        ring.itself = ring
    assert found


class _Ring:
    def __init__(self, found):
        self.found = found

    def __del__(self):
        self.found.append(1)
