"""Being pushed to: a server that sends to whoever listens, and who listens when."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from penstock.brokers.nats.aio.pushing import PushInbox
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.config import PushDelivery, SubscriptionConfig
from penstock.errors import PermissionDeniedError
from penstock.message import Settlement, Verb
from penstock.testing import settled

CONFIG = SubscriptionConfig(
    name="billing",
    topic="orders",
    ack_deadline=30,
    push=PushDelivery(subject="deliver.here", group="workers"),
)
CONSUMER = Consumer("orders", "billing", CONFIG)


def ack_id(sequence):
    return f"$JS.ACK.orders.billing.1.{sequence}.1.1700000000000000000.5"


class Wire:
    """Hands over what the test says has been pushed, to whoever listens or has just left."""

    timeout = 5.0
    connected = True

    def __init__(self):
        self.listening, self.renewed, self.given_back, self.told = [], [], [], []
        self.heard_all = 0

    async def hear_all(self):
        assert not self.listening
        self.heard_all += 1

    async def until_connected(self, within):
        pass

    def check_open(self):
        pass

    def subscribe(self, subject, sink, *, queue):
        self.sink = sink
        self.listening.append((subject, queue))
        return self.listening.clear

    def post(self, parts):
        for part in parts:
            head, _, body = part.partition(b"\r\n")
            assert body in (b"+WPI\r\n", b"\r\n")
            (self.renewed if body == b"+WPI\r\n" else self.told).append(head.split()[1].decode())

    def give_back(self, replies):
        self.given_back += [reply.decode() for reply in replies]

    def push(self, *sequences, size=1):
        for sequence in sequences:
            self.sink(b"orders", ack_id(sequence).encode(), b"", bytes(size))

    def ask_whether_to_go_on(self, number):
        self.sink(b"in", b"$JS.FC.%d" % number, b"NATS/1.0 100 FlowControl Request\r\n\r\n", b"")

    def say_that_it_has_nothing(self):
        self.sink(b"in", b"", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"")

    def say_that_it_waits(self, number):
        stalled = b"Nats-Consumer-Stalled: $JS.FC.%d\r\n" % number
        self.sink(b"in", b"", b"NATS/1.0 100 Idle Heartbeat\r\n%b\r\n" % stalled, b"")


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def inbox(wire):
    return PushInbox(wire, SimpleNamespace(give_back=wire.give_back), CONSUMER)


async def pulled(inbox, count, wait=0.0):
    raws = await inbox.pull(count, 2**30, wait)
    ids = [reply.decode() for _, reply, _, _ in raws]
    inbox.lend(ids)
    return ids


async def test_whoever_no_longer_pulls_leaves_what_is_pushed_to_others(wire, inbox):
    assert await pulled(inbox, 1) == []
    assert wire.listening == [("deliver.here", "workers")]
    wire.push(1, 2)
    await asyncio.sleep(1.1)
    assert wire.listening == []
    assert wire.given_back == [ack_id(1), ack_id(2)]
    wire.push(3)
    assert wire.given_back[2:] == [ack_id(3)]


async def test_whoever_pulls_again_is_pushed_to_again(wire, inbox):
    await pulled(inbox, 1)
    await asyncio.sleep(1.1)
    pull = asyncio.create_task(pulled(inbox, 10, wait=60))
    await asyncio.sleep(50)
    assert wire.listening == [("deliver.here", "workers")]
    wire.push(1)
    assert await pull == [ack_id(1)]


@pytest.mark.parametrize("verb", [Verb.ACK, Verb.NACK, Verb.RELEASE])
async def test_whoever_is_busy_with_a_message_is_pushed_to_until_it_is_settled(wire, inbox, verb):
    await pulled(inbox, 1)
    wire.push(1)
    [lent] = await pulled(inbox, 1)
    await asyncio.sleep(20)
    inbox.settled([Settlement(lent, Verb.EXTEND, 30.0)])
    await asyncio.sleep(20)
    assert wire.listening
    inbox.settled([Settlement(lent, verb)])
    await asyncio.sleep(2.1)
    assert not wire.listening


async def test_a_message_that_nobody_settles_keeps_nobody_listening(wire, inbox):
    await pulled(inbox, 1)
    wire.push(1)
    assert await pulled(inbox, 1) == [ack_id(1)]
    await asyncio.sleep(32)
    assert not wire.listening and wire.given_back == []


async def test_what_waits_to_be_pulled_does_not_come_again_meanwhile(wire, inbox):
    pull = asyncio.create_task(pulled(inbox, 1, wait=60))
    await settled()
    wire.push(1, 2)
    assert await pull == [ack_id(1)]
    await asyncio.sleep(25)
    assert wire.renewed == [ack_id(2)] * 2


async def test_closing_gives_back_what_waits_and_ends_who_waits(wire, inbox):
    pull = asyncio.create_task(pulled(inbox, 1, wait=60))
    await settled()
    inbox.close()
    assert await pull == []
    assert wire.listening == []
    wire.push(1)
    assert wire.given_back == [ack_id(1)]
    assert await pulled(inbox, 1, wait=60) == []


def pushed_to(wire, *, group=""):
    config = replace(CONFIG, push=PushDelivery(subject="deliver.here", group=group))
    consumer = Consumer("orders", "billing", config)
    return PushInbox(wire, SimpleNamespace(give_back=wire.give_back), consumer)


@pytest.mark.parametrize("ask", [Wire.ask_whether_to_go_on, Wire.say_that_it_waits])
async def test_a_server_is_told_to_go_on_when_there_is_room(wire, ask):
    inbox = pushed_to(wire)
    await pulled(inbox, 1)
    ask(wire, 1)
    assert wire.told == ["$JS.FC.1"]
    wire.push(*range(1, 20), size=2**20)
    ask(wire, 2)
    wire.say_that_it_waits(3)
    await pulled(inbox, 10)
    assert wire.told == ["$JS.FC.1"], "nine megabytes wait"
    await pulled(inbox, 1)
    assert wire.told == ["$JS.FC.1", "$JS.FC.3"], "the last it asked for, and once"
    await pulled(inbox, 8)
    assert len(wire.told) == 2
    inbox.close()


async def test_a_server_is_told_to_go_on_by_whoever_leaves(wire):
    inbox = pushed_to(wire)
    await pulled(inbox, 1)
    wire.push(*range(1, 20), size=2**20)
    wire.ask_whether_to_go_on(1)
    await asyncio.sleep(1.1)
    assert not wire.listening and wire.told == ["$JS.FC.1"]
    pull = asyncio.create_task(pulled(inbox, 1, wait=60))
    await settled()
    wire.ask_whether_to_go_on(2)
    assert wire.told[1:] == ["$JS.FC.2"], "what it gave back is not counted"
    inbox.close()
    await pull


async def test_a_member_of_a_group_does_not_keep_a_server_from_the_others(wire):
    inbox = pushed_to(wire, group="workers")
    await pulled(inbox, 1)
    wire.push(*range(1, 20), size=2**20)
    wire.ask_whether_to_go_on(1)
    assert wire.told == ["$JS.FC.1"]
    inbox.close()


async def test_a_server_that_says_that_it_has_nothing_still_waits_to_be_told_to_go_on(wire):
    inbox = pushed_to(wire)
    await pulled(inbox, 1)
    wire.push(*range(1, 20), size=2**20)
    wire.say_that_it_waits(1)
    wire.say_that_it_has_nothing()
    await pulled(inbox, 20)
    assert wire.told == ["$JS.FC.1"]
    inbox.close()


async def test_who_may_not_tell_a_server_to_go_on_is_told_what_to_permit(wire):
    inbox = pushed_to(wire)
    pull = asyncio.ensure_future(pulled(inbox, 1, wait=60))
    await settled()
    inbox.denied("$JS.FC.orders.shipping.x7")
    await settled()
    assert not pull.done(), "it is another subscription's"
    inbox.denied("$JS.FC.orders.billing.x7")
    with pytest.raises(PermissionDeniedError, match=r"\$JS\.FC\.orders\.billing\.>"):
        await pull
    inbox.close()


async def test_what_a_server_lends_anew_while_it_waits_here_comes_once(wire, inbox):
    """One that was killed forgets what it lent last, and names it alike."""
    await pulled(inbox, 1)
    wire.push(1, 2, 1, 2, 3)
    assert await pulled(inbox, 10) == [ack_id(1), ack_id(2), ack_id(3)]
    wire.push(1)
    assert await pulled(inbox, 10) == [ack_id(1)], "whoever has it knows"


async def test_no_more_bytes_are_pulled_than_were_asked_for_but_by_one_message(wire, inbox):
    pull = asyncio.ensure_future(inbox.pull(10, 1, 30))
    await settled()
    wire.push(1, 2, 3, 4, size=10)
    assert len(await pull) == 1, "what is larger than the room must get through"
    assert len(await inbox.pull(10, 25, 30)) == 2
    assert len(await inbox.pull(10, 25, 30)) == 1
    inbox.close()


async def test_nobody_listens_for_whoever_pulls_after_the_end(wire, inbox):
    inbox.close()
    assert await inbox.pull(1, 100, 30) == []
    assert wire.listening == []


async def test_headers_count_as_well(wire):
    inbox = pushed_to(wire)
    await inbox.pull(1, 2**30, 0)
    for sequence in range(1, 4):
        wire.sink(b"orders", ack_id(sequence).encode(), bytes(600), bytes(400))
    assert len(await inbox.pull(10, 2000, 0)) == 2
    inbox.close()


async def test_whoever_leaves_is_pushed_nothing_that_it_gives_back_then(wire, inbox):
    pull = asyncio.ensure_future(inbox.pull(1, 1000, 5))
    await settled()
    await inbox.leave()
    assert wire.listening and not wire.heard_all, "somebody pulls"
    wire.push(1, 2)
    assert len(await pull) == 1
    await inbox.leave()
    assert not wire.listening and wire.heard_all == 1
    assert wire.given_back == [ack_id(2)]
    await inbox.leave()
    assert wire.heard_all == 1
    pull = asyncio.ensure_future(inbox.pull(1, 1000, 5))
    await settled()
    assert wire.listening
    wire.push(2)
    assert len(await pull) == 1


async def test_whoever_leaves_takes_what_is_being_pushed_along(wire, inbox):
    pull = asyncio.ensure_future(inbox.pull(1, 1000, 5))
    await settled()
    wire.push(1, 2)
    assert len(await pull) == 1
    leaving = asyncio.ensure_future(inbox.leave())
    await asyncio.sleep(0)
    wire.ask_whether_to_go_on(1)
    for sequence in (3, 4):
        await asyncio.sleep(0.04)
        wire.push(sequence)
    assert wire.listening and not wire.told, "who leaves does not say to go on"
    await leaving
    assert not wire.listening and wire.told
    assert wire.given_back == [ack_id(2), ack_id(3), ack_id(4)]


async def test_whoever_pulls_again_while_it_leaves_stays(wire, inbox):
    pull = asyncio.ensure_future(inbox.pull(1, 1000, 5))
    await settled()
    wire.push(1, 2)
    await pull
    leaving = asyncio.ensure_future(inbox.leave())
    await asyncio.sleep(0)
    wire.ask_whether_to_go_on(1)
    assert not wire.told
    assert len(await inbox.pull(1, 1000, 5)) == 1
    await asyncio.wait([leaving], timeout=0.2)
    assert wire.told and wire.given_back == []
