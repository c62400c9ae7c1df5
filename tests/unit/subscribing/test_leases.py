"""The lease book: whose a message is, until when, and what the broker must be told."""

from penstock import LeaseExtension
from penstock.message import Settlement, Verb
from penstock.subscribing.leases import LeaseBook
from tests.support.scenes import loans


def told(settlements: list[Settlement]) -> list[tuple[str, float | None]]:
    assert all(settlement.verb is Verb.EXTEND for settlement in settlements)
    return [(settlement.ack_id, settlement.seconds) for settlement in settlements]


def renewed(book: LeaseBook, now: float) -> list[Settlement]:
    settlements, overdue = book.renewals(now)
    assert overdue == []
    return settlements


def test_a_loan_ends_when_it_is_settled_or_its_time_is_up():
    book = LeaseBook()
    first, second = loans("a1", "a2")
    assert book.begin([first, second], 10, now=0) == []
    assert len(book) == 2
    assert book.end("a1") is first
    assert book.end("a1") is None
    assert book.next() == 10
    assert book.pop_expired(9.9) == []
    assert book.pop_expired(10) == [second]
    assert len(book) == 0
    assert second not in book


def test_a_deadline_of_our_own_is_told_to_the_broker():
    book = LeaseBook()
    book.configure(60, None)
    assert told(book.begin(loans("a1"), 10, now=0)) == [("a1", 60)]
    assert book.ack_deadline == 60
    assert book.pop_expired(59) == []


def test_a_loan_is_extended_until_its_handler_ends():
    book = LeaseBook()
    book.configure(None, LeaseExtension(interval=4, jitter=0))
    [message] = loans("a1")
    book.begin([message], 10, now=0)
    assert book.next() == 4
    assert told(renewed(book, 4)) == [("a1", 10)]
    assert told(renewed(book, 8)) == [("a1", 10)]
    book.stop_extending(message)
    assert renewed(book, 12) == []
    assert book.pop_expired(17.9) == []
    assert book.pop_expired(18) == [message]


def test_extension_has_an_end():
    book = LeaseBook()
    book.configure(None, LeaseExtension(interval=5, jitter=0, max_total=12))
    book.begin(loans("a1"), 10, now=0)
    times = [now for now in range(30) if renewed(book, now)]
    assert times == [5, 10]


def test_extension_never_shortens_what_was_promised():
    book = LeaseBook()
    book.configure(None, LeaseExtension(interval=5, jitter=0))
    [message] = loans("a1")
    book.begin([message], 10, now=0)
    assert told([book.prolong("a1", 300, now=1)]) == [("a1", 300)]
    assert [now for now in range(250) if renewed(book, now)] == []
    assert message in book


def test_nothing_is_said_of_a_loan_that_has_ended():
    book = LeaseBook()
    book.configure(None, LeaseExtension(interval=5, jitter=0))
    [message] = loans("a1")
    book.begin([message], 10, now=0)
    book.prolong("a1", 1, now=0)
    assert book.pop_expired(1) == [message]
    assert [now for now in range(2, 30) if renewed(book, now)] == []


def test_a_deadline_that_a_handler_set_outlives_it_where_the_broker_only_renews():
    book = LeaseBook()
    book.configure(None, LeaseExtension(interval=20, jitter=0))
    book.learn(broker_sets_deadlines=False)
    [message] = loans("a1")
    book.begin([message], 10, now=0)
    book.prolong("a1", 30, now=0)
    book.stop_extending(message)
    assert [now for now in range(40) if renewed(book, now)] == [5, 10, 15, 20, 25]
    assert book.pop_expired(30) == [message]


def test_what_waits_is_kept_and_what_goes_is_not():
    book = LeaseBook()
    messages = loans("a1", "a2")
    book.begin(messages, 10, now=0)
    book.park(messages, now=0)
    assert told(renewed(book, 5)) == [("a1", 10), ("a2", 10)]
    assert book.start(messages[0], now=5) == []
    assert told(renewed(book, 10)) == [("a2", 10)]
    assert book.pop_expired(15) == [messages[0]]


def test_what_was_parked_gets_its_time_when_it_starts():
    book = LeaseBook()
    messages = loans("a1", "a2")
    book.begin(messages, 10, now=0)
    book.park(messages, now=0)
    assert book.start(messages[0], now=0.5) == []
    assert told(book.start(messages[1], now=4)) == [("a2", 10)]
    assert book.pop_expired(10) == [messages[0]]
    assert book.pop_expired(13.9) == []
    assert book.pop_expired(14) == [messages[1]]


def test_what_was_parked_is_extended_for_as_long_as_any_other_from_when_it_starts():
    book = LeaseBook()
    book.configure(None, LeaseExtension(interval=5, jitter=0, max_total=20))
    [message] = loans("a1")
    book.begin([message], 10, now=0)
    book.park([message], now=0)
    for now in range(5, 100, 5):
        assert renewed(book, now)
    book.start(message, now=100)
    assert [now for now in range(100, 140) if renewed(book, now)] == [105, 110, 115]
    assert book.pop_expired(125) == [message]


def test_what_is_parked_for_too_long_is_to_be_given_back_before_it_ends():
    book = LeaseBook()
    [message] = loans("a1")
    book.begin([message], 10, now=0)
    book.park([message], now=0)
    for now in range(5, 3600, 5):
        assert len(renewed(book, now)) == 1
        assert book.pop_expired(now) == []
    assert book.renewals(3600) == ([], [message])


def test_a_broker_that_only_renews_is_told_often_enough():
    book = LeaseBook()
    book.learn(broker_sets_deadlines=False)
    [message] = loans("a1")
    book.begin([message], 10, now=0)
    book.prolong("a1", 32, now=0)
    times = [now for now in range(60) if renewed(book, now)]
    assert times == [5, 10, 15, 20, 25, 30]
    assert book.pop_expired(32) == [message]


def test_memory_follows_the_loans_that_are_open():
    book = LeaseBook()
    book.configure(60, LeaseExtension(interval=5))
    book.learn(broker_sets_deadlines=False)
    for n in range(100):
        [message] = loans(f"a{n}")
        book.begin([message], 10, now=n)
        book.park([message], now=n)
        book.end(message.ack_id)
    kept = (book._expiry, book._renewal, book._extended_since, book._promised_until, book.parked)
    assert [len(each) for each in kept] == [0] * 5
