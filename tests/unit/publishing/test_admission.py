"""Who may be in flight: how long a hold lasts, and whose turn it is."""

from penstock.message import Draft
from penstock.publishing.admission import Admission
from penstock.publishing.flight import Flight


def flight(name, *, size=1, topic="orders", key=None):
    return Flight(name, topic, Draft(bytes(size), ordering_key=key))


def test_a_hold_lasts_while_the_bytes_are_too_many_however_few_the_flights():
    admission = Admission(max_in_flight=10, max_bytes=100, refill_at=9)
    small, large = flight("1", size=60), flight("2", size=150)
    admission.enter(small)
    assert not admission.holding
    admission.enter(large)
    assert admission.holding
    admission.leave(small)
    assert not admission.lift_hold(), "150 of 100 bytes are still in flight"
    admission.leave(large)
    assert admission.lift_hold()


def test_a_hold_lasts_until_few_enough_are_left():
    admission = Admission(max_in_flight=3, max_bytes=1000, refill_at=1)
    flights = [flight(str(n)) for n in range(3)]
    for one in flights:
        admission.enter(one)
    admission.leave(flights[0])
    assert not admission.lift_hold()
    admission.leave(flights[1])
    assert admission.lift_hold()
    assert not admission.lift_hold(), "it was lifted before"


def test_the_same_key_of_two_topics_is_two_keys():
    admission = Admission(max_in_flight=10, max_bytes=100, refill_at=0)
    here, there = flight("1", key="ann"), flight("2", topic="invoices", key="ann")
    behind = flight("3", key="ann")
    assert admission.enter(here)
    assert admission.enter(there)
    assert not admission.enter(behind)
    assert admission.leave(there) is None
    assert admission.leave(here) is behind
