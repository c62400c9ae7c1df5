import pytest

from penstock import Backoff, FlowControl, RetryPolicy
from penstock.errors import InvalidArgumentError
from penstock.rules.window import Window


def test_reserved_room_is_not_room():
    window = Window(10, 100)
    window.reserve(6, 50)
    assert (window.room, window.room_bytes, window.full) == (4, 50, False)
    window.unreserve(6, 50)
    window.take(10, 40)
    assert (window.room, window.room_bytes, window.full) == (0, 60, True)
    window.release(1, 10)
    assert (window.room, window.room_bytes, window.full) == (1, 70, False)


def test_a_window_is_full_by_bytes_alone():
    window = Window(10, 100)
    window.take(1, 150)
    assert window.full
    assert window.room_bytes == 0


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
