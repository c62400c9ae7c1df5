"""Messages that are handed over as they come, and those behind them that are not."""

from types import SimpleNamespace

import pytest

from penstock.brokers.nats.broker import NatsBroker
from penstock.brokers.nats.confirming import Confirming
from penstock.brokers.nats.handing_over import HandingOver
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.config import DeadLetterPolicy, SubscriptionConfig
from penstock.testing import VirtualClock


def consumer_of(**options):
    config = SubscriptionConfig(name="billing", topic="orders", **options)
    return Consumer("orders", "billing", config)


def raw(sequence):
    reply = b"$JS.ACK.orders.billing.1.%d.%d.1700000000000000000.5" % (sequence, sequence)
    return b"orders", reply, b"", b"x"


class Catalogue:
    """Where a subscription may be configured anew."""

    def __init__(self, consumer):
        self.now = consumer

    async def consumer(self, _subscription):
        return self.now

    def latest(self, _consumer):
        return self.now

    def look_again(self, _subscription):
        pass


NOT_PLAIN = [
    {"filter": 'attributes.stage = "Queued"'},
    {"enable_exactly_once_delivery": True},
    {"dead_letter_policy": DeadLetterPolicy(topic="orders-dead", max_delivery_attempts=5)},
]


@pytest.mark.parametrize("options", NOT_PLAIN, ids=["filter", "exactly once", "dead letters"])
@pytest.mark.parametrize("anew", [False, True], ids=["from the beginning", "configured anew"])
def test_what_has_to_be_looked_at_first_is_not_handed_over(options, anew):
    wanted, taken = consumer_of(**options), []
    catalogue = Catalogue(wanted)
    over = HandingOver(catalogue, consumer_of() if anew else wanted, taken.append)
    assert not over([raw(1)])
    assert not taken and not over.began


class Pulling:
    """Hands over a part of what comes; the subscription has a filter before the rest comes."""

    def __init__(self, catalogue, rest):
        self._catalogue = catalogue
        self._rest = rest
        self.requests = 0
        self.acked = []

    async def pull(self, _consumer, _most, _most_bytes, _wait, hand_over):
        self.requests += 1
        assert self.requests == 1, "what was taken may have left no room for more"
        assert hand_over([raw(1)])
        self._catalogue.now = consumer_of(filter='NOT attributes:"stage"')
        if self._rest == "does not match":
            self._catalogue.now = consumer_of(filter='attributes:"stage"')
        assert not hand_over([raw(2)])
        return [raw(2)]

    async def write_acks(self, acks):
        self.acked += [to for to, _ in acks]

    def give_back(self, _replies):
        raise AssertionError("nothing goes back")


@pytest.mark.parametrize("rest", ["matches", "does not match"])
async def test_what_follows_a_part_that_was_taken_is_returned_if_it_has_to_be_looked_at(rest):
    broker, taken = NatsBroker.__new__(NatsBroker), []
    broker._catalogue = Catalogue(consumer_of())
    broker._pulling = Pulling(broker._catalogue, rest)
    broker._connection = SimpleNamespace(wire=SimpleNamespace(check_open=lambda: None))
    broker._clock, broker._confirming = VirtualClock(), Confirming()
    broker._ordered, broker._loans, broker._pushed = {}, {}, {}
    came = await broker.pull_to(taken.extend, "billing", max_messages=2, max_bytes=1000, wait=30)
    assert [delivery.record.sequence for delivery in taken] == [1]
    matches = rest == "matches"
    assert [delivery.record.sequence for delivery in came] == ([2] if matches else [])
    assert broker._pulling.acked == ([] if matches else [raw(2)[1]])
