"""Whose an ack id is, and until when."""

import asyncio
from types import SimpleNamespace

import pytest

from penstock.brokers.nats.aio.running import Running
from penstock.brokers.nats.broker import NatsBroker
from penstock.brokers.nats.confirming import Confirming
from penstock.brokers.nats.failing import Failing
from penstock.brokers.nats.loans import WRITTEN_AFTER, Loans
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.config import DeadLetterPolicy, SubscriptionConfig
from penstock.errors import UnavailableError
from penstock.message import AckResponse, Delivery, Record, Settlement, Verb
from penstock.testing import VirtualClock, settled


def lent(ack_id):
    # Deliveries of a message are a, a2, a3.
    record = Record(ord(ack_id[0]), ack_id, b"", {}, None, "orders", 0)
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


@pytest.mark.parametrize(
    ("next_lender", "knows"),
    [("second run", False), ("first run", True), ("", True)],  # The last is one of a cluster.
)
def test_what_a_lone_server_lent_last_is_not_ours_when_it_was_started_again(next_lender, knows):
    held = loans("a")
    held.served_by("first run")
    held.begin([lent("b")], 4.0)
    for moment in (4.5, 4.6):  # The first attempt to connect fails.
        held.lost(moment - WRITTEN_AFTER)
    assert held.is_open("b", 4.7)
    held.served_by(next_lender)
    assert held.is_open("a", 5.0), "it had written that down long ago"
    assert held.is_open("b", 5.0) is knows


def test_a_server_that_was_started_again_keeps_whole_seconds_of_a_loan():
    held = loans("a")
    held.served_by("first run")
    held.lost(5.0 - WRITTEN_AFTER)
    held.served_by("second run")
    assert held.is_open("a", 8.9)
    assert not held.is_open("a", 9.0)


def test_an_extension_that_a_server_may_have_forgotten_is_none():
    held = loans("a")
    held.served_by("first run")
    for moment in (6.0, 7.0):
        held.settled(Settlement("a", Verb.EXTEND, 10.0), moment)
    held.lost(7.5 - WRITTEN_AFTER)
    held.served_by("second run")
    assert held.is_open("a", 8.9)
    assert not held.is_open("a", 9.0)


def test_what_a_server_lent_before_a_connection_was_cut_is_not_doubted_for_ever():
    held = loans("a")
    held.served_by("first run")
    held.lost(0.1 - WRITTEN_AFTER)
    held.served_by("first run")
    held.lost(8.0 - WRITTEN_AFTER)
    held.served_by("second run")
    assert held.is_open("a", 8.1)


def test_what_has_expired_is_forgotten_when_more_is_lent():
    held = loans("a")
    held.begin([lent("b")], 10.0)
    assert held.record("a") is None
    assert held.record("b") is not None


def test_only_the_latest_delivery_of_a_message_is_open():
    held = loans("a")
    held.begin([lent("a2")], 1.0)
    assert not held.is_open("a", 2.0)
    assert held.is_open("a2", 2.0)
    held.settled(Settlement("a", Verb.ACK), 2.0)
    assert held.is_open("a2", 2.0), "an answer to a stale delivery settles nothing"


def test_memory_follows_the_loans_that_are_open():
    held = loans("a", "b")
    held.begin([lent("a2")], 1.0)
    held.settled(Settlement("a2", Verb.ACK), 2.0)
    held.begin([lent("c")], 20.0)
    held.settled(Settlement("c", Verb.ACK), 20.0)
    assert not held._latest and not held._records


def given(nth, sequence=1):
    ack_id = f"$JS.ACK.orders.billing.1.{sequence}.{nth}.1700000000000000000.0"
    return Delivery(Record(sequence, "m", b"", {}, None, "orders", 0), ack_id, 1, 10.0)


def test_what_was_lent_before_it_was_written_down_is_ours_for_its_time_and_once():
    config = SubscriptionConfig(name="billing", topic="orders", ack_deadline=10)
    held = Loans(config, unwritten_until=10.0)
    first, second, third, written = (given(nth, nth).ack_id for nth in (1, 2, 3, 4))
    held.begin([given(4, 4)], 1.0)
    assert all(held.is_open(one, 2.0) for one in (first, second, third, written))
    held.settled(Settlement(first, Verb.ACK), 2.0)
    held.settled(Settlement(written, Verb.ACK), 2.0)
    held.settled(Settlement(second, Verb.EXTEND, 10.0), 5.0)
    assert not any(held.is_open(one, 6.0) for one in (first, written, given(5, 5).ack_id))
    assert not any(held.is_open(one, 6.0) for one in ("", "x", f"{first}\n"))
    assert [held.is_open(one, 11.0) for one in (second, third)] == [True, False]
    held.begin([given(6, sequence=2)], 12.0)
    assert not held.is_open(second, 12.0), "it has come again"


class Pulling:
    """A server that confirms acks when it is told to, or never."""

    def __init__(self):
        self.confirms = asyncio.get_running_loop().create_future()

    async def write_acks_and_wait(self, acks):
        await self.confirms


def delivery(attempt):
    ack_id = f"$JS.ACK.orders.billing.{attempt}.1.{attempt}.1700000000000000000.0"
    return Delivery(Record(1, "m", b"", {}, None, "orders", 0), ack_id, attempt, 10.0)


async def test_an_ack_id_of_another_subscription_is_never_sent():
    config = SubscriptionConfig(name="billing", topic="orders")
    broker, sent = plain_broker(Consumer("orders", "billing", config))
    ours, others = (
        f"$JS.ACK.orders.{name}.1.1.1.1700000000000000000.0" for name in ("billing", "x")
    )
    for verb in (Verb.ACK, Verb.NACK):
        answers = await broker.settle("billing", [Settlement(i, verb) for i in (others, ours)])
        assert answers == [AckResponse.SUCCESS] * 2
    assert sent == [(ours.encode(), b"+ACK"), (ours.encode(), b"-NAK")]


async def test_what_came_is_given_back_when_it_cannot_be_looked_at():
    policy = DeadLetterPolicy(topic="dead", max_delivery_attempts=1)
    config = SubscriptionConfig(name="billing", topic="orders", dead_letter_policy=policy)
    consumer = Consumer("orders", "billing", config)
    broker, _ = plain_broker(consumer)
    given_back = []
    broker._pulling.give_back = given_back.extend

    async def count(_consumer, _sequence):
        raise UnavailableError("lost")

    broker._failing = Failing(None, None, SimpleNamespace(count=count), "penstock")
    with pytest.raises(UnavailableError):
        await broker._sifted(consumer, [delivery(1), delivery(2)])
    assert given_back == [delivery(1).ack_id.encode(), delivery(2).ack_id.encode()]


async def test_nobody_looks_for_dead_letters_of_a_subscription_that_is_gone():
    config = SubscriptionConfig(name="billing", topic="orders")
    consumer = Consumer("orders", "billing", config)
    broker, _ = plain_broker(consumer)
    left = []
    broker._mover = SimpleNamespace(leave=left.append)
    broker._forget(consumer)
    assert left == [consumer]


def wire():
    return SimpleNamespace(
        check_open=lambda: None, connected=True, lone_server="first run", running=Running()
    )


def plain_broker(consumer):
    """One without loans, and what it tells the server."""
    sent = []

    async def known(_subscription):
        return consumer

    async def write_acks(acks):
        sent.extend(acks)

    broker = NatsBroker.__new__(NatsBroker)
    broker._connection = SimpleNamespace(wire=wire())
    broker._catalogue = SimpleNamespace(consumer=known)
    broker._clock, broker._pulling = VirtualClock(), SimpleNamespace(write_acks=write_acks)
    broker._failing = Failing(None, None, None, "penstock")
    broker._ordered, broker._loans, broker._pushed = {}, {}, {}
    broker._confirming = Confirming()
    return broker, sent


def exactly_once_broker():
    """One that has lent a message for the first time."""
    config = SubscriptionConfig(name="billing", topic="orders", enable_exactly_once_delivery=True)
    consumer = Consumer("orders", "billing", config)

    async def known(_subscription):
        return consumer

    broker = NatsBroker.__new__(NatsBroker)
    broker._connection = SimpleNamespace(wire=wire())
    broker._catalogue = SimpleNamespace(consumer=known)
    broker._clock, broker._pulling = VirtualClock(), Pulling()
    broker._ordered, broker._loans, broker._pushed = {}, {}, {}
    broker._confirming = Confirming()
    broker._remember(consumer, [delivery(1)])
    return broker, consumer


async def test_what_came_first_of_all_as_the_connection_went_is_doubted_too():
    broker, consumer = exactly_once_broker()
    broker._loans.clear()
    broker._connection.wire.connected = False
    broker._remember(consumer, [delivery(1)])
    broker._connection.wire.connected = True
    broker._connection.wire.lone_server = "second run"
    acks = [Settlement(delivery(1).ack_id, Verb.ACK)]
    assert await broker.settle("billing", acks) == [AckResponse.INVALID]


def stand_still(seconds):
    asyncio.get_running_loop()._jumping.now += seconds


async def test_what_was_lent_before_we_stood_still_is_doubted_however_long_that_was():
    broker, _ = exactly_once_broker()
    await asyncio.sleep(1)
    stand_still(7)
    await settled()  # What is due now is done before anybody hears of the loss.
    broker._lost()
    broker._connection.wire.lone_server = "second run"
    acks = [Settlement(delivery(1).ack_id, Verb.ACK)]
    assert await broker.settle("billing", acks) == [AckResponse.INVALID]


async def test_what_comes_again_while_its_ack_is_confirmed_is_not_handed_over():
    broker, consumer = exactly_once_broker()
    acking = asyncio.ensure_future(
        broker.settle("billing", [Settlement(delivery(1).ack_id, Verb.ACK)])
    )
    await settled()
    pulled = asyncio.ensure_future(broker._sifted(consumer, [delivery(2)]))
    await settled()
    assert not pulled.done()
    broker._pulling.confirms.set_result(None)
    assert await acking == [AckResponse.SUCCESS]
    assert await pulled == []
    assert await broker._sifted(consumer, [delivery(3)]) == [delivery(3)]


async def test_what_comes_again_while_its_nack_is_confirmed_is_handed_over():
    broker, consumer = exactly_once_broker()
    broker._failing = Failing(None, None, None, "penstock")
    nacking = asyncio.ensure_future(
        broker.settle("billing", [Settlement(delivery(1).ack_id, Verb.NACK)])
    )
    await settled()
    pulled = asyncio.ensure_future(broker._sifted(consumer, [delivery(2)]))
    await settled()
    broker._pulling.confirms.set_result(None)
    await nacking
    assert await pulled == [delivery(2)]


async def test_what_comes_again_while_its_ack_is_lost_is_handed_over_and_alone_is_valid():
    broker, consumer = exactly_once_broker()
    acks = [Settlement(delivery(1).ack_id, Verb.ACK)]
    acking = asyncio.ensure_future(broker.settle("billing", acks))
    await settled()
    pulled = asyncio.ensure_future(broker._sifted(consumer, [delivery(2)]))
    await settled()
    broker._pulling.confirms.set_exception(UnavailableError("lost"))
    with pytest.raises(UnavailableError):
        await acking
    assert await pulled == [delivery(2)]
    broker._remember(consumer, await pulled)
    assert await broker.settle("billing", acks) == [AckResponse.INVALID]


@pytest.mark.parametrize("connected", [True, False])
async def test_an_ack_of_what_a_server_may_not_know_it_lent_is_invalid_and_not_sent(connected):
    broker, consumer = exactly_once_broker()
    wire = broker._connection.wire
    if not connected:  # It came as the connection went.
        wire.connected = False
        broker._remember(consumer, [delivery(1)])
    else:
        broker._lost()
    wire.connected, wire.lone_server = True, "second run"
    acks = [Settlement(delivery(1).ack_id, Verb.ACK)]
    assert await broker.settle("billing", acks) == [AckResponse.INVALID]
    assert not broker._pulling.confirms.done()
