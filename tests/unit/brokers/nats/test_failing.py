"""What becomes of a message that failed: another attempt, or the dead letters."""

from types import SimpleNamespace

import pytest

from penstock import DeadLetterPolicy
from penstock.brokers.nats.failing import Failing
from penstock.brokers.nats.loans import Loans
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.config import SubscriptionConfig
from penstock.errors import TopicNotFoundError, UnavailableError
from penstock.message import Delivery, PublishFault, Receipt, Record, Settlement, Verb

POLICY = DeadLetterPolicy(topic="orders-dead", max_delivery_attempts=5)
CONFIG = SubscriptionConfig(name="billing", topic="orders", dead_letter_policy=POLICY)
CONSUMER = Consumer("orders", "billing", CONFIG)


class Letters:
    """The dead letters' topic, and how often each message was given back unseen."""

    def __init__(self, *, unseen=0, missing=False):
        self.unseen, self.missing, self.drafts = unseen, missing, []

    async def publish(self, topic, drafts):
        if self.missing:
            return [PublishFault(TopicNotFoundError(topic))]
        self.drafts += drafts
        return [Receipt(drafts[0].message_id, 1)]

    async def count(self, _consumer, _sequence):
        if isinstance(self.unseen, Exception):
            raise self.unseen
        return self.unseen


async def answer(letters, attempt, verb=Verb.NACK):
    ack_id = f"$JS.ACK.orders.billing.{attempt}.1.{attempt}.1700000000000000000.0"
    record = Record(1, "m", b"x", {"k": "v"}, None, "orders", 0)
    loans = Loans(CONFIG)
    loans.begin([Delivery(record, ack_id, attempt, 10.0)], 0.0)
    failing = Failing(letters, SimpleNamespace(), letters, "penstock")
    return await failing.answer(CONSUMER, Settlement(ack_id, verb), loans)


@pytest.mark.parametrize(
    ("attempt", "unseen", "told", "moved"),
    [(4, 0, b"-NAK", 0), (5, 0, b"+ACK", 1), (5, 1, b"-NAK", 0), (6, 1, b"+ACK", 1)],
)
async def test_a_nack_of_the_last_attempt_moves_the_message(attempt, unseen, told, moved):
    letters = Letters(unseen=unseen)
    assert await answer(letters, attempt) == told
    assert [draft.attributes["k"] for draft in letters.drafts] == ["v"] * moved


@pytest.mark.parametrize(
    ("delivered", "unseen", "shown"),
    [(5, 0, 5), (6, 0, None), (6, 1, 5), (8, 7, 1), (8, 1, None), (3, 2, 1), (2, 0, 2)],
)
async def test_what_comes_after_its_last_attempt_is_moved_instead_of_handed_over(
    delivered, unseen, shown
):
    letters, told = Letters(unseen=unseen), []

    async def write_acks(acks):
        told.extend(verb for _, verb in acks)

    ack_id = f"$JS.ACK.orders.billing.{delivered}.1.{delivered}.1700000000000000000.0"
    came = Delivery(Record(1, "m", b"x", {}, None, "orders", 0), ack_id, delivered, 10.0)
    failing = Failing(letters, SimpleNamespace(write_acks=write_acks), letters, "penstock")
    kept, _ = await failing.without_spent(CONSUMER, [came])
    assert [one.delivery_attempt for one in kept] == ([] if shown is None else [shown])
    assert told == ([b"+ACK"] if shown is None else [])
    assert len(letters.drafts) == len(told)


@pytest.mark.parametrize("delivered", [5, 6])
async def test_attempts_are_the_servers_where_nobody_says_how_many_were_unseen(delivered):
    """But none is given up for that."""
    ack_id = f"$JS.ACK.orders.billing.{delivered}.1.{delivered}.1700000000000000000.0"
    came = Delivery(Record(1, "m", b"x", {}, None, "orders", 0), ack_id, delivered, 10.0)
    letters = Letters(unseen=UnavailableError("away"))
    failing = Failing(letters, SimpleNamespace(), letters, "penstock")
    if delivered > POLICY.max_delivery_attempts:
        with pytest.raises(UnavailableError):
            await failing.without_spent(CONSUMER, [came])
    else:
        assert await failing.without_spent(CONSUMER, [came]) == ([came], {})


async def test_a_letter_has_the_id_of_its_message_and_of_none_before_it():
    letters = Letters()
    failing = Failing(letters, SimpleNamespace(), letters, "penstock")
    # Whoever moves it; and the first message of a topic that was made again meanwhile.
    for published in (1, 1, 2):
        record = Record(1, "m", b"x", {}, None, "orders", published)
        assert await failing.move(CONFIG, record, 5)
    first, again, another = (draft.message_id for draft in letters.drafts)
    assert first == again != another


async def test_what_cannot_be_moved_stays():
    assert await answer(Letters(missing=True), 5) == b"-NAK"
    assert await answer(Letters(missing=True), 1, Verb.REJECT) == b"-NAK"


async def test_what_is_rejected_is_moved_at_once():
    letters = Letters()
    assert await answer(letters, 1, Verb.REJECT) == b"+ACK"
    assert len(letters.drafts) == 1
