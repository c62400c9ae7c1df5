"""Order per key: who may go, who waits, and for how long a failure is waited for."""

from penstock.subscribing.ordering import KeyOrder
from tests.support.scenes import loans


def keyed(*ack_ids: str):
    return loans(*ack_ids, key="key")


def test_one_of_a_key_goes_and_the_others_follow_in_turn():
    order = KeyOrder(broker_orders=False)
    first, second, third = keyed("1", "2", "3")
    [free] = loans("4")
    going, behind = order.enter([first, second, third, free])
    assert going == [first, free]
    assert set(behind) == {second, third}
    assert order.waiting == 2
    assert order.leave(first, None).following is second
    assert order.leave(second, None).following is third
    assert order.leave(third, None).following is None
    assert order.enter(keyed("5"))[1] == []


def test_a_failure_on_a_broker_that_orders_gives_back_what_is_behind_it():
    order = KeyOrder(broker_orders=True)
    first, second = keyed("1", "2")
    order.enter([first, second])
    left = order.leave(first, 0.0)
    assert left.following is None
    assert list(left.give_back) == [second]


def test_a_key_waits_for_a_failure_to_come_back_but_not_for_ever():
    order = KeyOrder(broker_orders=False)
    first, second = keyed("1", "2")
    order.enter([first, second])
    assert order.leave(first, 10.0).following is None
    assert order.next() == 15
    assert order.stop_awaiting(14.9) == []
    assert order.stop_awaiting(15) == [second]
    assert order.next() is None


def test_a_failure_that_comes_back_too_late_waits_for_the_one_that_went_instead():
    order = KeyOrder(broker_orders=False)
    first, second = keyed("1", "2")
    order.enter([first, second])
    order.leave(first, 10.0)
    assert order.stop_awaiting(15) == [second]
    [again] = keyed("1")
    assert order.enter([again]) == ([], [again])
    assert order.leave(second, None).following is again


def test_a_failure_that_came_back_is_first():
    order = KeyOrder(broker_orders=False)
    first, second = keyed("1", "2")
    order.enter([first, second])
    order.leave(first, 10.0)
    [again] = keyed("1")
    assert order.enter([again])[0] == [again]
    assert order.stop_awaiting(100) == []
    assert order.leave(again, None).following is second


def test_a_redelivery_that_came_after_later_ones_goes_before_them():
    order = KeyOrder(broker_orders=False)
    first, second, third = keyed("1", "2", "3")
    order.enter([first])
    order.enter([third])
    order.enter([second])
    assert order.leave(first, None).following is second
    assert order.leave(second, None).following is third


def test_a_key_that_failed_again_is_waited_for_anew():
    order = KeyOrder(broker_orders=False)
    first, second = keyed("1", "2")
    order.enter([first, second])
    order.leave(first, 10.0)
    [again] = keyed("1")
    order.enter([again])
    order.leave(again, 14.0)
    assert order.stop_awaiting(15) == []
    assert order.stop_awaiting(19) == [second]
