"""Whose an ack id is, and until when."""

from penstock.brokers.nats.loans import Loans
from penstock.config import SubscriptionConfig
from penstock.message import Delivery, Record, Settlement, Verb


def lent(ack_id):
    record = Record(1, ack_id, b"", {}, None, "orders", 0)
    return Delivery(record, ack_id, 1, 10.0)


def loans(*ack_ids, now=0.0):
    made = Loans(SubscriptionConfig(name="billing", topic="orders", ack_deadline=10))
    made.begin([lent(ack_id) for ack_id in ack_ids], now)
    return made


def test_a_loan_is_open_until_its_deadline_and_not_a_moment_longer():
    open_now = loans("a")
    assert open_now.is_open("a", 9.9)
    assert not open_now.is_open("a", 10.0)
    assert not open_now.is_open("b", 1.0), "it was lent to somebody else"


def test_an_extension_begins_anew_and_everything_else_ends_a_loan():
    held = loans("a", "b")
    held.settled(Settlement("a", Verb.EXTEND, 10.0), 9.0)
    assert held.is_open("a", 18.9)
    for verb, ack_id in ((Verb.ACK, "a"), (Verb.NACK, "b")):
        held.settled(Settlement(ack_id, verb), 9.5)
        assert not held.is_open(ack_id, 9.5)
        assert held.record(ack_id) is None


def test_what_has_expired_is_forgotten_when_more_is_lent():
    held = loans("a")
    held.begin([lent("b")], 10.0)
    assert held.record("a") is None
    assert held.record("b") is not None
