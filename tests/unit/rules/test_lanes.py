from hypothesis import given
from hypothesis import strategies as st

from penstock.rules.lanes import Lanes


def test_the_first_of_a_key_goes_and_the_others_wait():
    lanes: Lanes[int] = Lanes()
    assert lanes.enter("a", 1)
    assert not lanes.enter("a", 2)
    assert lanes.enter("b", 3)
    assert not lanes.enter("a", 4)
    assert list(lanes.items_waiting()) == [2, 4]
    assert lanes.waiting == 2
    assert lanes.leave("a") == 2
    assert lanes.leave("a") == 4
    assert lanes.leave("a") is None
    assert lanes.leave("b") is None
    assert len(lanes) == 0


def test_leaving_a_lane_nobody_is_in_is_harmless():
    lanes: Lanes[int] = Lanes()
    assert lanes.leave("a") is None
    assert lanes.take_waiting("a") == []


def test_taking_what_waits_keeps_the_lane_for_its_item():
    lanes: Lanes[int] = Lanes()
    for n in range(3):
        lanes.enter("a", n)
    assert lanes.take_waiting("a") == [1, 2]
    assert not lanes.enter("a", 3)
    assert lanes.leave("a") == 3


def test_what_is_no_longer_wanted_leaves_its_lane():
    lanes: Lanes[int] = Lanes()
    for n in range(6):
        lanes.enter("ab"[n % 2], n)
    lanes.keep_waiting(lambda n: n == 5)
    assert lanes.waiting == 1
    assert lanes.leave("a") is None
    assert lanes.leave("b") == 5


def test_clearing_frees_every_lane():
    lanes: Lanes[int] = Lanes()
    for n in range(4):
        lanes.enter("ab"[n % 2], n)
    assert lanes.clear() == [2, 3]
    assert lanes.enter("a", 5)


@given(st.lists(st.sampled_from("abc-"), max_size=80))
def test_each_key_is_served_in_order_one_at_a_time(keys):
    lanes: Lanes[tuple[str, int]] = Lanes()
    running: dict[str, tuple[str, int]] = {}
    served = []
    for n, key in enumerate(keys):
        if key != "-":
            if lanes.enter(key, (key, n)):
                assert key not in running
                running[key] = (key, n)
        elif running:
            done = running.pop(next(iter(running)))
            served.append(done)
            following = lanes.leave(done[0])
            if following is not None:
                running[done[0]] = following
    for key in "abc":
        mine = [item for item in served if item[0] == key]
        assert mine == sorted(mine)
    assert set(running) == {k for k in "abc" if lanes.current(k) is not None}
    assert lanes.waiting == len(list(lanes.items_waiting()))
