import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Backoff, FlowControl, RetryPolicy
from penstock.errors import InvalidArgumentError
from penstock.rules.window import Room, Window


def test_reserved_room_is_not_room():
    window = Window(10, 100)
    kept = Room(window, 6, 50)
    assert (window.room, window.room_bytes, window.full) == (4, 50, False)
    kept.give_up()
    assert (window.room, window.room_bytes, window.full) == (10, 100, False)
    Room(window, 10, 100).use(10, 40)
    assert (window.room, window.room_bytes, window.full) == (0, 0, True)
    window.release(1, 10)
    assert (window.room, window.room_bytes, window.full) == (1, 10, False)


def test_a_window_is_full_by_bytes_alone():
    asked, pushed = Window(10, 100), Window(10, 100)
    Room(asked, 1, 100).use(1, 150)
    pushed.take(1, 150)
    for window in (asked, pushed):
        assert window.full
        assert (window.room_bytes, window.reserved_bytes) == (0, 0)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 60)), max_size=12), st.integers(0, 90))
def test_room_that_is_kept_is_used_up_part_by_part_and_never_more_than_once(parts, size):
    window = Window(20, 100)
    other, kept = Room(window, 3, 10), Room(window, 12, size)
    came = came_size = 0
    for messages, of_part in parts:
        if messages > kept.messages:
            break
        kept.use(messages, of_part)
        came, came_size = came + messages, came_size + of_part
        assert (window.messages, window.bytes) == (came, came_size)
        assert window.reserved == 3 + 12 - came
        assert window.reserved_bytes == 10 + max(0, size - came_size)
        assert (kept.messages, kept.size) == (12 - came, max(0, size - came_size))
    for _ in range(2):
        kept.give_up()
        assert (window.reserved, window.reserved_bytes) == (3, 10)
    other.give_up()
    assert (window.reserved, window.reserved_bytes) == (0, 0)


def test_backoff_doubles_to_its_maximum_with_full_jitter():
    backoff = Backoff(initial=1, maximum=10)
    assert [backoff.delay(n, lambda: 1.0) for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]
    assert backoff.delay(10_000, lambda: 0.5) == 5
    assert backoff.delay(3, lambda: 0.0) == 0


def test_a_retry_policy_doubles_without_jitter_and_never_overflows():
    policy = RetryPolicy(minimum_backoff=10, maximum_backoff=600)
    assert [policy.delay(n) for n in (1, 2, 3, 7, 100_000)] == [10, 20, 40, 600, 600]
    assert RetryPolicy(minimum_backoff=0, maximum_backoff=0).delay(5) == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: FlowControl(max_messages=0),
        lambda: FlowControl(max_messages=1.5),
        lambda: FlowControl(max_messages=True),
        lambda: FlowControl(max_bytes=0),
        lambda: Backoff(initial=0),
        lambda: Backoff(initial=5, maximum=1),
        lambda: RetryPolicy(minimum_backoff=-1),
        lambda: RetryPolicy(maximum_backoff=601),
        lambda: RetryPolicy(minimum_backoff=20, maximum_backoff=10),
    ],
)
def test_impossible_values_are_refused(make):
    with pytest.raises(InvalidArgumentError):
        make()
