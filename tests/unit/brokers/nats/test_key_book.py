"""Of each key the earliest unsettled message is the only one that may be lent."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.nats.key_book import KeyBook
from penstock.message import Delivery, Record


def delivery(sequence, key="a", attempt=1):
    record = Record(sequence, f"m-{sequence}", b"x", {}, key, "topic", 0)
    return Delivery(record, f"{sequence}.{attempt}", attempt, 10.0)


def taken(book, count=100, size=10**6):
    return [d.record.sequence for d in book.take(count, size)]


def arrived(*sequences, key="a"):
    book = KeyBook()
    for sequence in sequences:
        book.arrive(delivery(sequence, key))
    return book


def test_one_of_a_key_is_lent_at_a_time():
    book = arrived(1, 2, 3)
    book.arrive(delivery(4, "b"))
    book.arrive(delivery(5, None))
    assert taken(book) == [1, 4, 5]
    assert taken(book) == []
    book.settled(1)
    assert taken(book) == [2]


def test_what_may_be_taken_counts_as_what_waits_its_turn_does():
    book = arrived(1, 2)
    assert (book.ready, book.here) == (1, 2)
    assert book.size == 2 * delivery(1).record.size


def test_what_only_waits_its_turn_is_nobodys_next_return():
    book = arrived(1, 2)
    assert taken(book) == [1]
    assert book.give_back_last(due=5.0).record.sequence == 2
    assert book.next_return() is None
    book.settled(1)
    assert book.next_return() == 5.0


def test_what_stands_before_what_another_may_have_is_the_next_return():
    book = KeyBook()
    book.suspect(1, "a")
    book.arrive(delivery(2))
    assert book.give_back_last(due=5.0).record.sequence == 2
    assert (book.is_behind, book.next_return()) == (True, 5.0)
    assert (book.due(4.0), book.due(5.0)) == (0, 1)
    book.arrive(delivery(1))
    assert (book.is_behind, book.next_return(), book.due(5.0)) == (False, None, 0)
    book.halted = True
    assert (book.is_behind, book.next_return(), book.due(5.0)) == (True, 5.0, 1)


def test_a_key_waits_for_what_was_given_back():
    book = arrived(1, 2)
    assert taken(book) == [1]
    book.settling(1)
    book.given_back(1)
    assert taken(book) == []
    book.arrive(delivery(1, attempt=2))
    assert taken(book) == [1]
    book.settled(1)
    assert taken(book) == [2]


def test_an_earlier_one_that_comes_late_goes_before_what_nobody_has_taken():
    book = arrived(2)
    book.arrive(delivery(1))
    assert taken(book) == [1]


def test_an_earlier_one_that_comes_late_waits_for_the_one_that_is_lent():
    book = arrived(2, 3)
    assert taken(book) == [2]
    book.arrive(delivery(1))
    assert taken(book) == []
    book.settled(2)
    assert taken(book) == [1]


def test_a_delivery_that_comes_again_replaces_the_stale_one():
    book = arrived(1, 2)
    assert taken(book) == [1]
    book.arrive(delivery(1, attempt=2))
    [again] = book.take(10, 10**6)
    assert again.delivery_attempt == 2
    assert taken(book) == []


def test_a_key_waits_for_what_somebody_else_may_have():
    book = KeyBook()
    book.suspect(1, "a")
    book.arrive(delivery(2))
    book.arrive(delivery(3, "b"))
    assert taken(book) == [3]
    book.compare(pending=3, floor=0, before=book.ours())
    assert taken(book) == []
    book.compare(pending=2, floor=0, before=book.ours())
    assert taken(book) == [2]


def test_what_the_server_knows_to_be_settled_is_not_waited_for():
    book = KeyBook()
    book.suspect(1, "a")
    book.arrive(delivery(2))
    book.compare(pending=9, floor=1, before=book.ours())
    assert taken(book) == [2]


def test_what_comes_while_the_server_is_asked_is_not_taken_for_what_it_counted():
    book = arrived(1)
    assert taken(book) == [1]
    book.given_back(1)
    before = book.ours()
    book.arrive(delivery(2))
    book.compare(pending=1, floor=0, before=before)
    assert taken(book) == []


def test_what_the_server_may_know_to_be_settled_is_not_counted_as_ours():
    book = arrived(1)
    assert taken(book) == [1]
    book.suspect(2, "b")
    book.arrive(delivery(3, "b"))
    book.settling(1)
    book.compare(pending=2, floor=0, before=book.ours())
    assert taken(book) == []


def test_nothing_with_a_key_goes_while_it_is_found_out_who_has_what():
    book = KeyBook()
    book.halted = True
    book.arrive(delivery(1))
    book.arrive(delivery(2, None))
    assert taken(book) == [2]
    book.go_on()
    assert taken(book) == [1]


def test_what_is_given_back_for_want_of_takers_is_waited_for_in_order():
    book = arrived(1, 2, 3)
    assert [d.record.sequence for d in book.give_back_all()] == [1, 2, 3]
    book.arrive(delivery(3, attempt=2))
    assert taken(book) == []
    book.arrive(delivery(1, attempt=2))
    assert taken(book) == [1]


def test_the_last_one_makes_room():
    book = arrived(1, 2, 3)
    assert book.give_back_last().record.sequence == 3
    assert (book.here, book.returning.keys()) == (2, {3})


def test_no_more_is_taken_than_asked_for_but_one_always_goes():
    book = arrived(1)
    for sequence in (2, 3):
        book.arrive(delivery(sequence, f"key-{sequence}"))
    assert len(taken(book, size=0)) == 1
    assert len(taken(book, count=1)) == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8), st.sampled_from("ab"))))
def test_of_a_key_nothing_is_lent_before_an_earlier_one_in_any_order(steps):
    book, keys, lent, known = KeyBook(), {}, {}, {"a": set(), "b": set()}
    for what, number, key in steps:
        key = keys.setdefault(number, key)
        if what in (0, 1):
            book.arrive(delivery(number, key))
            known[key].add(number)
            if lent.get(key) == number:
                del lent[key]
        elif what == 2:
            for d in book.take(1, 10**6):
                sequence, its = d.record.sequence, d.record.ordering_key
                assert its not in lent and sequence == min(known[its])
                lent[its] = sequence
        elif what == 3 and lent.get(key) is not None:
            sequence = lent.pop(key)
            known[key].discard(sequence)
            book.settled(sequence)
        elif what == 4 and lent.get(key) is not None:
            book.given_back(lent.pop(key))
        elif what == 5 and number not in known[key]:
            book.suspect(number, key)
            known[key].add(number)


def test_a_key_does_not_wait_for_ever_for_what_another_has_settled_meanwhile():
    book = arrived(1, 2)
    assert taken(book) == [1]
    book.halted = True
    book.doubt_lent()
    book.go_on()
    assert taken(book) == []
    book.compare(pending=1, floor=0, before=book.ours())
    assert taken(book) == [2]


def test_what_is_lent_and_in_doubt_is_ours_to_settle_or_comes_back():
    book = arrived(1, 2)
    book.arrive(delivery(3, "b"))
    book.arrive(delivery(4, "b"))
    assert taken(book) == [1, 3]
    book.doubt_lent()
    book.compare(pending=4, floor=0, before=book.ours())
    assert taken(book) == []
    book.settled(1)
    assert taken(book) == [2]
    book.given_back(3)
    book.arrive(delivery(3, "b", attempt=2))
    assert taken(book) == [3]


def test_what_was_given_back_and_may_have_gone_to_others_says_nothing_of_what_they_have():
    book = KeyBook()
    for sequence in (1, 2, 3):
        book.arrive(delivery(sequence, key=f"key-{sequence}"))
    book.give_back_all()
    assert book.ours().returning == {1, 2, 3}
    book.doubt_returning()
    assert book.ours().returning == set() and book.suspects == {1, 2, 3}
    # Another has been done with them; three of other keys are with it now.
    assert not book.is_all(3, book.ours())
    book.compare(0, 0, book.ours())
    assert not book.suspects and not book.waits


def test_what_is_out_of_the_way_is_so_until_it_comes_back_or_is_nobodys():
    book = arrived(1, 2, 3, 4)
    assert taken(book) == [1]
    for due in (1.0, 2.0, 3.0):
        book.give_back_last(due)
    assert book.out_of_the_way == {4: "4.1", 3: "3.1", 2: "2.1"}
    book.arrive(delivery(2, attempt=2))
    book.settled(3)
    assert book.out_of_the_way == {4: "4.1"}
    book.doubt_returning()
    assert not book.out_of_the_way
