"""Pulls that end half-way: nothing that the server lent is forgotten."""

import asyncio
import json
from contextlib import suppress
from types import SimpleNamespace

import msgspec
import pytest

from penstock.brokers.nats.aio.pulling import Pulling
from penstock.brokers.nats.broker import NatsBroker
from penstock.brokers.nats.protocol.consumers import Consumer, PullLimits
from penstock.clock import NS
from penstock.config import SubscriptionConfig
from penstock.errors import DeadlineExceededError, SubscriptionNotFoundError, UnavailableError
from penstock.testing import settled
from tests.support.scenes import cancel_all_others

CONSUMER = Consumer("orders", "billing", SubscriptionConfig(name="billing", topic="orders"))
FIRST, SECOND = (b"$JS.ACK.orders.billing.1.%d.1.1700000000000000000.5" % n for n in (1, 2))


class Wire:
    """Takes what is written, and hands over what the test says has come."""

    timeout = 5.0
    max_payload = 1000
    connected = True

    def __init__(self):
        self.sinks, self.posted, self.losses, self.left = [], [], [], []
        self.acts = []
        self.answering = asyncio.Event()
        self.answering.set()

    async def hear_all(self):
        await self.answering.wait()

    def check_connected(self):
        pass

    async def until_connected(self, within):
        pass

    def subscribe(self, subject, sink):
        self.sinks.append(sink)
        return lambda: self.left.append(asyncio.get_running_loop().time())

    def on_loss(self, act):
        self.losses.append(act)

    def loss(self):
        return UnavailableError("lost")

    async def write(self, parts):
        self.reply_to = parts[0].split()[2]
        self.written = parts

    def end(self, block):
        self.sinks[-1](self.reply_to, b"", block, b"")

    def post(self, parts):
        self.posted += parts

    def afterwards(self, act):
        self.acts.append(act)

    def all_is_read(self):
        while self.acts:
            self.acts.pop(0)()

    def deliver(self, reply):
        self.sinks[-1](b"orders", reply, b"", b"x")


@pytest.fixture
def wire():
    return Wire()


def pulling(wire):
    """That has been given messages, and left more."""
    options = SimpleNamespace(inbox_prefix="_INBOX", timeout=5.0)
    requests = Pulling(SimpleNamespace(wire=wire, options=options))
    requests._with_more.add(CONSUMER.key)
    return requests


async def waiting_pull(wire, requests=None):
    pull = asyncio.ensure_future((requests or pulling(wire)).pull(CONSUMER, 10, 1000, 30))
    await settled()
    return pull


def given_back(reply):
    return b"PUB %b 4\r\n-NAK\r\n" % reply


async def test_a_pull_that_is_cancelled_gives_back_what_has_come_and_what_comes_later(wire):
    pull = await waiting_pull(wire)
    wire.deliver(FIRST)
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    assert wire.posted == [given_back(FIRST)]
    wire.deliver(SECOND)
    assert wire.posted == [given_back(FIRST), given_back(SECOND)]


async def test_a_pull_that_is_cancelled_while_messages_come_waits_for_them_to_give_them_back(wire):
    """Of what is sent to nobody nobody hears, and it has cost an attempt."""
    pull = await waiting_pull(wire)
    await asyncio.sleep(1)
    wire.deliver(FIRST)
    pull.cancel()
    for _ in range(5):
        await asyncio.sleep(0.04)
        assert not wire.left and not pull.done()
        wire.deliver(SECOND)
    await asyncio.wait([pull])
    [left] = wire.left
    assert 1.2 < left < 1.31
    assert wire.posted == [given_back(FIRST), *[given_back(SECOND)] * 5]


async def test_a_pull_that_is_cancelled_waits_no_longer_than_a_moment_for_what_never_stops(wire):
    pull = await waiting_pull(wire)
    pull.cancel()
    while not wire.left:
        wire.deliver(FIRST)
        wire.deliver(SECOND)
        wire.sinks[-1].__self__.wanted += 2
        await asyncio.sleep(0.04)
    assert wire.left[0] < 1.1
    with pytest.raises(asyncio.CancelledError):
        await pull


async def test_a_pull_that_is_cancelled_as_soon_as_it_was_made_may_be_answered_still(wire):
    pull = await waiting_pull(wire)
    pull.cancel()
    await settled()
    assert not wire.left
    wire.deliver(FIRST)
    await asyncio.wait([pull])
    assert wire.posted == [given_back(FIRST)] and len(wire.left) == 1


async def test_what_comes_for_a_pull_that_was_cancelled_is_handed_to_nobody(wire):
    taken = []
    pull = asyncio.ensure_future(
        pulling(wire).pull(CONSUMER, 10, 1000, 30, lambda raws: taken.append(raws) or True)
    )
    await settled()
    pull.cancel()
    await asyncio.sleep(0.01)
    wire.deliver(FIRST)
    wire.all_is_read()
    await asyncio.wait([pull])
    assert not taken and wire.posted == [given_back(FIRST)]


async def test_what_may_be_anothers_when_a_pull_is_cancelled_is_left_to_it(wire):
    pull = await dated_pull(wire, wait=30, heartbeat=2, most=10)
    wire.deliver(FIRST)
    await asyncio.sleep(0)
    asyncio.get_running_loop()._jumping.now += 8  # We stood still.
    pull.cancel()
    await asyncio.wait([pull])
    assert wire.posted == []


async def test_pulls_that_are_cancelled_together_give_back_nothing_to_each_other(wire):
    """The server would send it to those of them that have not left, and count an attempt."""
    requests = pulling(wire)
    pulls = [asyncio.ensure_future(requests.pull(CONSUMER, 1, 1000, 30)) for _ in range(2)]
    await settled()
    for pull in pulls:
        pull.cancel()
    wire.sinks[0](b"orders", FIRST, b"", b"x")
    await settled()
    assert len(wire.left) == 1 and wire.posted == [], "one waits for what it may be sent still"
    await asyncio.wait(pulls)
    assert len(wire.left) == 2 and wire.posted == [given_back(FIRST)]


async def test_what_comes_for_pulls_that_are_cancelled_all_the_time_is_given_back_at_once(wire):
    requests, loop = pulling(wire), asyncio.get_running_loop()
    came, back = {}, {}

    class Posted(list):
        def __iadd__(self, parts):
            back.update((part.split()[1], loop.time()) for part in parts)
            return self

    async def look_for_a_moment(first):
        await asyncio.sleep(first)
        while loop.time() < 20:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.03):
                    await requests.pull(CONSUMER, 1, 1000, 30)

    wire.posted = Posted()
    looking = [asyncio.ensure_future(look_for_a_moment(n / 100)) for n in range(10)]
    for n in range(100):
        await asyncio.sleep(0.1)
        waits = [inbox for inbox in requests._busy if inbox.done.cancelled() or not inbox.came]
        reply = b"$JS.ACK.orders.billing.1.%d.1.1700000000000000000.5" % n
        came[reply] = loop.time()
        waits[0].receive(b"orders", reply, b"", b"x")
    await asyncio.wait(looking)
    assert back
    assert max(moment - came[reply] for reply, moment in back.items()) < 0.2
    assert not requests._leaving


async def test_a_pull_that_was_cancelled_is_over_when_the_server_knows(wire):
    """Whoever closes may then be sure that nothing is sent to it any more."""
    pull = await waiting_pull(wire)
    await asyncio.sleep(1)
    wire.answering.clear()
    pull.cancel()
    await asyncio.sleep(0.5)
    assert wire.left == [1] and not pull.done()
    wire.answering.set()
    await settled()
    assert pull.cancelled()


async def test_a_pull_that_is_cancelled_once_more_waits_for_nothing_and_is_withdrawn(wire):
    requests = pulling(wire)
    pull = await waiting_pull(wire, requests)
    wire.answering.clear()
    pull.cancel()
    wire.deliver(FIRST)
    await asyncio.sleep(0)
    pull.cancel()
    await settled()
    assert pull.cancelled() and wire.left == []
    await asyncio.sleep(0.03)
    wire.deliver(SECOND)
    closing = asyncio.ensure_future(requests.close())
    await asyncio.sleep(0.2)
    assert wire.posted == [given_back(FIRST), given_back(SECOND)] and len(wire.left) == 1
    assert not closing.done()
    wire.answering.set()
    await closing
    assert not requests._seen_off


async def test_closing_waits_until_what_is_withdrawn_is_given_back(wire):
    requests = pulling(wire)
    pull = await waiting_pull(wire, requests)
    for _ in range(2):
        pull.cancel()
        await asyncio.sleep(0)
    wire.deliver(FIRST)
    await requests.close()
    assert pull.cancelled() and wire.posted == [given_back(FIRST)]


async def test_closing_does_not_wait_for_ever_for_a_pull_that_is_withdrawn(wire):
    requests = pulling(wire)
    pull = await waiting_pull(wire, requests)
    wire.answering.clear()
    pull.cancel()
    await settled()
    began = asyncio.get_running_loop().time()
    closing = asyncio.ensure_future(requests.close())
    await asyncio.sleep(2)
    wire.answering.set()
    await closing
    assert asyncio.get_running_loop().time() - began == 2


async def test_a_connection_that_is_lost_while_a_pull_ends_is_nobodys_failure(wire):
    pull = await waiting_pull(wire)
    pull.cancel()
    await settled()
    wire.connected = False
    for act in wire.losses:
        act()
    await settled()
    assert pull.cancelled()


@pytest.mark.parametrize(
    "how", ["nothing came", "the server has ended it", "the connection is lost"]
)
async def test_a_pull_that_is_cancelled_while_nothing_comes_ends_at_once(wire, how):
    """So that the server does not send it what comes from now on."""
    pull = await waiting_pull(wire)
    await asyncio.sleep(1)
    if how == "the server has ended it":
        wire.deliver(FIRST)
        wire.end(b"NATS/1.0 409 Batch Completed\r\nNats-Pending-Messages: 8\r\n\r\n")
    if how == "the connection is lost":
        wire.deliver(FIRST)
        wire.connected = False
    pull.cancel()
    await settled()
    assert wire.left == [1] or how == "the connection is lost"
    await asyncio.sleep(1)
    assert len(wire.left) == 1


async def test_a_pull_that_nobody_answers_gives_back_what_has_come(wire):
    pull = await dated_pull(wire, wait=30, heartbeat=0, most=10)
    wire.deliver(FIRST)
    with pytest.raises(DeadlineExceededError):
        await pull
    assert wire.posted == [given_back(FIRST)]


@pytest.mark.parametrize("came", [[], [FIRST]])
async def test_a_server_that_has_forgotten_a_request_is_asked_again_soon(wire, came):
    """It answers none that comes while it deletes the consumer."""
    pull = await waiting_pull(wire)
    for reply in came:
        wire.deliver(reply)
    assert [reply for _, reply, _, _ in await pull] == came
    assert asyncio.get_running_loop().time() == 10 * (1 + len(came))
    wire.deliver(SECOND)
    assert wire.posted == [given_back(SECOND)], "nobody waits for it any more"


async def test_a_request_that_the_server_says_it_has_is_waited_for(wire):
    pull = await waiting_pull(wire)
    for _ in range(5):
        await asyncio.sleep(5)
        wire.end(NOTHING_YET)
    assert not pull.done()
    wire.end(b"NATS/1.0 408 Request Timeout\r\n\r\n")
    assert await pull == []


async def test_of_the_requests_to_a_consumer_one_is_watched(wire):
    requests = pulling(wire)
    pulls = []
    for watched in (True, False, False):
        pulls.append(asyncio.ensure_future(requests.pull(CONSUMER, 1, 1000, 30)))
        await settled()
        assert (b"idle_heartbeat" in wire.written[0]) is watched
    wire.sinks[0](b"orders", FIRST, b"", b"x")
    await pulls[0]
    pulls.append(asyncio.ensure_future(requests.pull(CONSUMER, 1, 1000, 30)))
    await settled()
    assert b"idle_heartbeat" in wire.written[0]
    for pull in pulls:
        pull.cancel()
    await asyncio.wait(pulls)


async def test_a_request_for_which_no_signs_are_given_does_not_keep_another_from_being_watched(
    wire,
):
    requests = pulling(wire)
    pulls = []
    for wait, watched in ((1, False), (30, True)):
        pulls.append(asyncio.ensure_future(requests.pull(CONSUMER, 1, 1000, wait)))
        await settled()
        assert (b"idle_heartbeat" in wire.written[0]) is watched
    for pull in pulls:
        pull.cancel()
    await asyncio.wait(pulls)


async def test_a_pull_ends_when_the_connection_does(wire):
    pull = await waiting_pull(wire)
    for act in wire.losses:
        act()
    with pytest.raises(UnavailableError, match="lost"):
        await pull


async def test_the_status_of_an_earlier_request_ends_no_later_one(wire):
    pull = await waiting_pull(wire)
    [sink] = wire.sinks
    sink(b"_INBOX.of.an.earlier.request", b"", b"NATS/1.0 404 No Messages\r\n\r\n", b"")
    await settled()
    assert not pull.done()
    pull.cancel()
    await asyncio.wait({pull})


async def test_what_was_sent_before_a_pull_ended_is_waited_for_though_the_end_comes_first(wire):
    pull = await waiting_pull(wire)
    wire.deliver(FIRST)
    # Of ten that were asked for eight will not come: one of the two is on its way.
    wire.end(b"NATS/1.0 409 Batch Completed\r\nNats-Pending-Messages: 8\r\n\r\n")
    await settled()
    assert not pull.done()
    wire.deliver(SECOND)
    assert [reply for _, reply, _, _ in await pull] == [FIRST, SECOND]
    assert wire.posted == []


async def test_a_pull_whose_end_says_nothing_of_what_is_on_its_way_is_over(wire):
    pull = await waiting_pull(wire)
    wire.deliver(FIRST)
    wire.end(b"NATS/1.0 404 No Messages\r\n\r\n")
    assert [reply for _, reply, _, _ in await pull] == [FIRST]
    wire.deliver(SECOND)
    assert wire.posted == [given_back(SECOND)]


async def test_acks_that_nobody_is_there_to_confirm_are_no_success(wire):
    acks = asyncio.ensure_future(pulling(wire).write_acks_and_wait([(FIRST, b"+ACK")]))
    await settled()
    wire.end(b"NATS/1.0 503\r\n\r\n")
    with pytest.raises(UnavailableError, match="503"):
        await acks


TOO_LARGE = b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\n\r\n"
NOTHING_YET = b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"


async def dated_pull(wire, *, wait, heartbeat, most=1):
    pull = asyncio.ensure_future(
        pulling(wire).pull_dated(CONSUMER, most, 1000, wait, heartbeat=heartbeat)
    )
    await settled()
    return pull


@pytest.mark.parametrize("dated", [False, True])
async def test_a_subscription_that_is_waited_for_in_vain_is_looked_at_now_and_then(wire, dated):
    """Somebody may have changed its filter."""
    requests, looked_at = pulling(wire), []
    requests.on_sign = looked_at.append
    pull = asyncio.ensure_future(
        requests.pull_dated(CONSUMER, 1, 1000, 30, heartbeat=5)
        if dated
        else requests.pull(CONSUMER, 1, 1000, 30)
    )
    for _ in range(3):
        await asyncio.sleep(5)
        wire.end(NOTHING_YET)
    assert looked_at == [CONSUMER] * 3
    wire.deliver(FIRST)
    await pull


async def test_what_comes_was_lent_after_the_server_last_said_that_there_is_nothing(wire):
    began = asyncio.get_running_loop().time()
    pull = await dated_pull(wire, wait=30, heartbeat=2)
    assert b'"idle_heartbeat":2000000000' in wire.written[0]
    for _ in range(3):
        await asyncio.sleep(2)
        wire.end(NOTHING_YET)
    await asyncio.sleep(1)
    wire.deliver(FIRST)
    raws, since = await pull
    assert [reply for _, reply, _, _ in raws] == [FIRST]
    assert since == began + 6


async def test_what_was_long_under_way_is_not_taken_for_new(wire):
    """The connection stood still: the server's word is as old as what came behind it."""
    began = asyncio.get_running_loop().time()
    pull = await dated_pull(wire, wait=30, heartbeat=2)
    await asyncio.sleep(3.9)
    wire.end(NOTHING_YET)
    wire.deliver(FIRST)
    assert (await pull)[1] == began + 2


@pytest.mark.parametrize(("after", "goes_back"), [(5, True), (20, False)])
async def test_what_comes_after_a_server_fell_silent_goes_back_unless_it_may_be_anothers(
    wire, after, goes_back
):
    pull = await dated_pull(wire, wait=30, heartbeat=2)
    assert await pull == ([], 0.0)
    await asyncio.sleep(after - asyncio.get_running_loop().time())
    wire.end(NOTHING_YET)
    wire.deliver(FIRST)
    assert wire.posted == ([given_back(FIRST)] if goes_back else [])


@pytest.mark.parametrize(("after", "goes_back"), [(5, True), (20, False)])
async def test_what_comes_after_a_request_ended_goes_back_unless_it_may_be_anothers(
    wire, after, goes_back
):
    pull = await dated_pull(wire, wait=30, heartbeat=2)
    wire.end(b"NATS/1.0 408 Request Timeout\r\n\r\n")
    assert await pull == ([], 0.0)
    await asyncio.sleep(after)
    wire.deliver(FIRST)
    assert wire.posted == ([given_back(FIRST)] if goes_back else [])


class LateWire(Wire):
    """To a server whose signs come a hundredth of a second late, and that lends a message after
    a while."""

    def __init__(self, *, lends_after):
        super().__init__()
        self._lends_at = asyncio.get_running_loop().time() + lends_after
        self.lent = 0

    def check_open(self):
        pass

    async def write(self, parts):
        await super().write(parts)
        request = json.loads(parts[0].split(b"\r\n")[1])
        self._answer(self.reply_to, request["expires"] / NS, request["idle_heartbeat"] / NS + 0.01)

    def _answer(self, to, wait, sign):
        loop = asyncio.get_running_loop()
        end = min(self._lends_at, loop.time() + wait)
        moments = [loop.time() + sign * n for n in range(1, int((end - loop.time()) / sign) + 1)]
        for moment in moments:
            loop.call_at(moment, self.sinks[-1], to, b"", NOTHING_YET, b"")
        if end < self._lends_at:
            ends = b"NATS/1.0 408 Request Timeout\r\n\r\n"
            loop.call_at(end, self.sinks[-1], to, b"", ends, b"")
        else:
            self.lent += 1
            loop.call_at(end, self.deliver, FIRST)


async def test_signs_that_come_late_take_nothing_from_the_time_of_what_follows_them():
    config = SubscriptionConfig(
        name="billing", topic="orders", enable_exactly_once_delivery=True, ack_deadline=1
    )
    consumer = Consumer("orders", "billing", config)
    wire = LateWire(lends_after=29.95)
    broker = NatsBroker.__new__(NatsBroker)
    broker._connection, broker._pulling = SimpleNamespace(wire=wire), pulling(wire)
    found = []
    while not found:
        found = await broker._take(consumer, 1, 1000, 30, None)
    assert [delivery.ack_deadline for delivery in found] == [1]
    assert wire.lent == 1, "what came first was handed over"


class SilentWire(LateWire):
    """To a server, or past somebody, that gives so many signs for a request and then no more. What
    it has lent and is not acked it lends again after the ack deadline, for as long as somebody
    waits for it."""

    def __init__(self, *, lends_after, ack_deadline, signs=0):
        super().__init__(lends_after=lends_after)
        self._ack_deadline = ack_deadline
        self._signs = signs
        self.requests = 0

    def subscribe(self, subject, sink):
        super().subscribe(subject, sink)
        self._waiting = None
        return self._leave

    def _leave(self):
        self._waiting = None

    def _answer(self, to, wait, sign):
        loop = asyncio.get_running_loop()
        self.requests += 1
        self._waiting = to
        for n in range(1, self._signs + 1):
            loop.call_later(n * sign, self.sinks[-1], to, b"", NOTHING_YET, b"")
        loop.call_at(max(self._lends_at, loop.time()), self._lend, to)

    def _lend(self, to):
        if to == self._waiting and asyncio.get_running_loop().time() >= self._lends_at:
            self._waiting = None
            self.lent += 1
            self._lends_at += self._ack_deadline
            self.deliver(FIRST)


@pytest.mark.parametrize("signs", [0, 3])
async def test_a_server_that_falls_silent_is_asked_again_and_what_it_lends_is_not_taken_for_old(
    signs,
):
    config = SubscriptionConfig(
        name="billing", topic="orders", enable_exactly_once_delivery=True, ack_deadline=8
    )
    consumer = Consumer("orders", "billing", config)
    wire = SilentWire(lends_after=17.9, ack_deadline=8, signs=signs)
    broker = NatsBroker.__new__(NatsBroker)
    broker._connection, broker._pulling = SimpleNamespace(wire=wire), pulling(wire)
    async with asyncio.timeout(60):
        found = []
        while not found:
            found = await broker._take(consumer, 1, 1000, 30, None)
    assert found[0].ack_deadline > 4, "more than half of its time is left"
    assert (wire.lent, wire.requests) == (1, 3 if signs else 9)


@pytest.mark.parametrize(("wait", "heartbeat"), [(3, 2), (30, 0)])
async def test_a_server_is_not_asked_for_signs_that_it_does_not_give(wire, wait, heartbeat):
    pull = await dated_pull(wire, wait=wait, heartbeat=heartbeat)
    assert b"idle_heartbeat" not in wire.written[0]
    wire.deliver(FIRST)
    await pull


async def handing_pull(wire, take):
    pull = asyncio.ensure_future(pulling(wire).pull(CONSUMER, 2, 1000, 30, take))
    await settled()
    return pull


@pytest.mark.parametrize("taken", [True, False])
async def test_what_comes_is_handed_over_before_whoever_waits_goes_on(wire, taken):
    handed = []

    def take(raws):
        assert not pull.done()
        handed.extend(reply for _, reply, _, _ in raws)
        return taken

    pull = await handing_pull(wire, take)
    wire.deliver(FIRST)
    wire.deliver(SECOND)
    assert not handed, "not all that came is read"
    wire.all_is_read()
    assert handed == [FIRST, SECOND]
    raws = await pull
    assert [reply for _, reply, _, _ in raws] == ([] if taken else handed)
    assert not wire.posted


async def test_what_comes_one_after_the_other_does_not_wait_for_the_rest(wire):
    handed = []
    pull = await handing_pull(wire, lambda raws: handed.append(len(raws)) is None)
    wire.deliver(FIRST)
    wire.all_is_read()
    await settled()
    assert handed == [1]
    assert not pull.done(), "one more was asked for"
    wire.deliver(SECOND)
    wire.all_is_read()
    assert handed == [1, 1]
    assert await pull == []


@pytest.mark.parametrize("then", [True, False], ids=["taken", "not taken"])
async def test_what_follows_something_that_was_not_taken_is_returned_behind_it(wire, then):
    asked = []

    def take(raws):
        asked.append(len(raws))
        return then if len(asked) > 1 else False

    pull = await handing_pull(wire, take)
    wire.deliver(FIRST)
    wire.all_is_read()
    wire.deliver(SECOND)
    wire.all_is_read()
    assert [reply for _, reply, _, _ in await pull] == [FIRST, SECOND]
    assert asked == [1], "nobody is asked again, or the second would overtake the first"


async def test_what_follows_something_that_was_taken_is_returned_if_it_was_not(wire):
    answers = iter([True, False])
    pull = await handing_pull(wire, lambda _: next(answers))
    wire.deliver(FIRST)
    wire.all_is_read()
    wire.deliver(SECOND)
    wire.all_is_read()
    assert [reply for _, reply, _, _ in await pull] == [SECOND]


async def test_what_is_too_large_to_follow_something_that_was_taken_is_not_asked_for_again(wire):
    pull = await handing_pull(wire, lambda _: True)
    wire.deliver(FIRST)
    wire.all_is_read()
    request = wire.written
    wire.end(b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 1\r\n\r\n")
    await settled()
    assert wire.written is request, "there may be no room left"
    assert await pull == []


async def test_an_end_of_a_request_is_told_whatever_was_taken_of_the_one_before_it(wire):
    requests = pulling(wire)
    first = asyncio.ensure_future(requests.pull(CONSUMER, 1, 1000, 30, lambda _: True))
    await settled()
    wire.deliver(FIRST)
    wire.all_is_read()
    assert await first == []
    second = asyncio.ensure_future(requests.pull(CONSUMER, 1, 1000, 30, lambda _: True))
    await settled()
    wire.end(b"NATS/1.0 409 Consumer Deleted\r\n\r\n")
    with pytest.raises(SubscriptionNotFoundError):
        await second
    assert len(wire.sinks) == 1, "both had the same inbox"


async def test_what_confirms_acks_is_not_handed_over_to_whoever_pulled_before(wire):
    requests, handed = pulling(wire), []
    pull = asyncio.ensure_future(
        requests.pull(CONSUMER, 1, 1000, 30, lambda raws: handed.append(raws) is None)
    )
    await settled()
    wire.deliver(FIRST)
    wire.all_is_read()
    await pull
    acks = asyncio.ensure_future(requests.write_acks_and_wait([(FIRST, b"+ACK")]))
    await settled()
    wire.sinks[0](wire.reply_to, b"", b"", b"")
    wire.all_is_read()
    await acks
    assert len(handed) == 1
    assert len(wire.sinks) == 1, "both had the same inbox"


@pytest.mark.parametrize(("unsettled", "batch"), [(0, 9), (10, 2), (3, 1)])
async def test_requests_leave_room_for_each_other_where_few_may_be_unsettled(
    wire, unsettled, batch
):
    few = Consumer("orders", "billing", CONSUMER.config, limits=PullLimits(unsettled=unsettled))
    pull = asyncio.ensure_future(pulling(wire).pull(few, 9, 1000, 30))
    await settled()
    assert asked(wire)[0] == batch
    pull.cancel()
    await asyncio.wait([pull])


async def test_a_request_names_the_group_of_a_consumer_that_has_one(wire):
    grouped = Consumer("orders", "billing", CONSUMER.config, group="penstock")
    pull = asyncio.ensure_future(pulling(wire).pull(grouped, 1, 1000, 30))
    await settled()
    assert json.loads(wire.written[0].split(b"\r\n")[1])["group"] == "penstock"
    pull.cancel()
    await asyncio.wait([pull])


async def test_acks_are_not_taken_for_confirmed_because_the_server_is_quiet(wire):
    few = Consumer("orders", "billing", CONSUMER.config, limits=PullLimits(unsettled=10))
    requests = pulling(wire)
    pull = asyncio.ensure_future(requests.pull(few, 1, 1000, 30))
    await settled()
    wire.deliver(FIRST)
    await pull
    acks = asyncio.ensure_future(
        requests.write_acks_and_wait([(FIRST, b"+ACK"), (SECOND, b"+ACK")])
    )
    await settled()
    wire.sinks[0](wire.reply_to, b"", b"", b"")
    with pytest.raises(DeadlineExceededError):
        await acks


async def test_what_a_server_that_fell_silent_still_sends_is_not_taken_for_the_next_requests(wire):
    requests = pulling(wire)
    pull = await waiting_pull(wire, requests)
    assert await pull == []
    again = asyncio.ensure_future(requests.pull(CONSUMER, 1, 1000, 30))
    await settled()
    wire.sinks[0](b"orders", FIRST, b"", b"x")
    assert wire.posted == [given_back(FIRST)]
    wire.deliver(SECOND)
    assert [reply for _, reply, _, _ in await again] == [SECOND]


@pytest.mark.parametrize(("age", "left"), [(1, 8), (4, 4), (7.5, None)])
async def test_what_has_hardly_any_time_left_is_not_handed_over(age, left):
    config = SubscriptionConfig(
        name="billing", topic="orders", enable_exactly_once_delivery=True, ack_deadline=8
    )
    wire = Wire()
    wire.check_open = lambda: None

    async def pull_dated(*_, **__):
        raw = (b"orders", FIRST, b"", b"x")
        return [raw], asyncio.get_running_loop().time() - age

    broker = NatsBroker.__new__(NatsBroker)
    broker._connection = SimpleNamespace(wire=wire)
    broker._pulling = SimpleNamespace(pull_dated=pull_dated)
    found = await broker._take(Consumer("orders", "billing", config), 1, 1000, 30, None)
    assert [delivery.ack_deadline for delivery in found] == ([] if left is None else [left])


async def test_a_pull_that_is_cancelled_half_way_gives_back_what_nobody_has(wire):
    handed = []
    pull = await handing_pull(wire, lambda raws: handed.append(raws) is None)
    wire.deliver(FIRST)
    wire.all_is_read()
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    wire.deliver(SECOND)
    wire.all_is_read()
    assert len(handed) == 1
    assert wire.posted == [given_back(SECOND)]


async def test_what_comes_in_parts_is_a_sign_that_the_server_has_the_request(wire):
    pull = await handing_pull(wire, lambda _: True)
    for reply in (FIRST, SECOND):
        await asyncio.sleep(9)
        assert not pull.done(), "nine seconds of silence are not ten"
        wire.deliver(reply)
        wire.all_is_read()
    assert await pull == []


async def test_a_pull_that_loses_its_connection_half_way_keeps_what_was_taken(wire):
    requests = pulling(wire)
    handed = []
    pull = asyncio.ensure_future(
        requests.pull(CONSUMER, 2, 1000, 30, lambda raws: handed.append(raws) is None)
    )
    await settled()
    wire.deliver(FIRST)
    wire.all_is_read()
    for act in wire.losses:
        act()
    with pytest.raises(UnavailableError):
        await pull
    assert len(handed) == 1
    assert not wire.posted


async def test_a_pull_that_is_cancelled_gives_back_nothing_that_somebody_has(wire):
    pull = await handing_pull(wire, lambda _: bool(pull.cancel()))
    wire.deliver(FIRST)
    wire.deliver(SECOND)
    wire.all_is_read()
    with pytest.raises(asyncio.CancelledError):
        await pull
    assert not wire.posted


async def test_what_came_for_a_pull_that_was_cancelled_before_is_given_back(wire):
    handed = []
    pull = await handing_pull(wire, handed.append)
    wire.deliver(FIRST)
    wire.deliver(SECOND)
    pull.cancel()
    wire.all_is_read()
    with pytest.raises(asyncio.CancelledError):
        await pull
    assert not handed
    assert wire.posted == [given_back(FIRST), given_back(SECOND)]


async def test_what_goes_wrong_when_it_is_taken_is_told_to_whoever_waits(wire):
    def take(_):
        raise ValueError("no")

    pull = await handing_pull(wire, take)
    wire.deliver(FIRST)
    wire.deliver(SECOND)
    wire.all_is_read()
    with pytest.raises(ValueError, match="no"):
        await pull


def last(*, behind, attempt=1):
    return b"$JS.ACK.orders.billing.%d.1.1.1700000000000000000.%d" % (attempt, behind)


def asked(wire):
    """How many messages, and how many bytes, the last request was for."""
    request = json.loads(wire.written[0].split(b"\r\n")[1])
    return request["batch"], request.get("max_bytes")


async def next_request(wire, requests, *came, take=lambda _: True, size=1000):
    """What is asked for after this has come for a request."""
    first = asyncio.ensure_future(requests.pull(CONSUMER, 9, 1000, 30, take))
    await settled()
    for reply in came:
        wire.deliver(reply)
    wire.end(b"NATS/1.0 404 No Messages\r\n\r\n")
    wire.all_is_read()
    await first
    second = asyncio.ensure_future(requests.pull(CONSUMER, 9, size, 30, take))
    await settled()
    second.cancel()
    await asyncio.wait([second])
    return asked(wire)


@pytest.mark.parametrize(
    ("wait", "how"), [(30, {"expires": NS // 4}), (0, {"no_wait": True})], ids=["waits", "does not"]
)
async def test_what_is_larger_than_the_room_is_asked_for_behind_those_who_wait(wire, wait, how):
    pull = asyncio.ensure_future(pulling(wire).pull(CONSUMER, 9, 10, wait))
    await settled()
    wire.end(TOO_LARGE)
    await settled()
    assert json.loads(wire.written[0].split(b"\r\n")[1]) == {"batch": 1, **how}
    wire.deliver(FIRST)
    assert [reply for _, reply, _, _ in await pull] == [FIRST]


@pytest.mark.parametrize("taken", [True, False])
async def test_who_has_all_there_is_asks_for_the_next_one_alone(wire, taken):
    came = last(behind=0)
    assert await next_request(wire, pulling(wire), came, take=lambda _: taken) == (1, None)


@pytest.mark.parametrize(
    ("came", "size"),
    [
        ([last(behind=3)], 1000),
        ([last(behind=0, attempt=2)], 1000),
        ([last(behind=0)], 999),
        ([last(behind=1), last(behind=0)], 1000),
    ],
    ids=[
        "more are there",
        "what comes again is not counted",
        "one may be too large",
        "they come several at a time",
    ],
)
async def test_who_may_find_more_asks_for_many(wire, came, size):
    assert await next_request(wire, pulling(wire), *came, size=size) == (9, size)


async def pulls_side_by_side(wire, requests, count, **options):
    """Pulls that wait, and the bytes that each has asked for."""
    pulls, sizes = [], []
    for n in range(count):
        consumer = msgspec.structs.replace(CONSUMER, name=f"billing-{n // 5}")
        pulls.append(
            asyncio.ensure_future(
                requests.pull(consumer, options.get("most", 200), 10**8, 30, options.get("take"))
            )
        )
        await settled()
        sizes.append(asked(wire)[1])
    return pulls, sizes


async def end(pulls):
    for pull in pulls:
        pull.cancel()
    await asyncio.wait(pulls)


@pytest.mark.parametrize("most", [200, 1])
async def test_requests_side_by_side_ask_for_less_than_a_server_holds_back(wire, most):
    wire.max_payload = 2**20
    requests = pulling(wire)
    pulls, sizes = await pulls_side_by_side(wire, requests, 300, most=most)
    assert sizes[0] == (4 * 2**20 if most > 1 else wire.max_payload + 8192)
    assert sum(sizes) <= 32 * 2**20 + 300 * 2**15, "the rest of 64 MB is for larger ones"
    assert min(sizes) == 2**15, "nobody is refused"
    await end(pulls)
    pulls, again = await pulls_side_by_side(wire, requests, 1, most=most)
    assert again == sizes[:1], "what was given up is free again"
    await end(pulls)


async def test_a_message_may_be_as_large_as_the_server_takes(wire):
    wire.max_payload = 8 * 2**20
    pulls, sizes = await pulls_side_by_side(wire, pulling(wire), 2)
    assert sizes == [wire.max_payload + 8192] * 2
    await end(pulls)


async def test_those_who_have_all_there_is_ask_without_a_bound_while_there_is_plenty(wire):
    wire.max_payload = 2**20
    pulls, sizes = await pulls_side_by_side(wire, pulling(wire), 30, take=lambda _: True)
    assert sizes[:15] == [None] * 15
    assert sizes[15:] == [2**15] * 15, "the other half is for those who find more"
    await end(pulls)


async def test_those_who_waited_for_a_connection_together_ask_for_no_more(wire):
    wire.max_payload = 2**20
    requests, back, sizes = pulling(wire), asyncio.Event(), []
    write = wire.write

    async def until_connected(within):
        await back.wait()

    async def note(parts):
        await write(parts)
        sizes.append(asked(wire)[1])

    wire.until_connected, wire.write = until_connected, note
    consumers = [msgspec.structs.replace(CONSUMER, name=f"billing-{n}") for n in range(60)]
    pulls = [
        asyncio.ensure_future(requests.pull(consumer, 9, 10**8, 30, lambda _: True))
        for consumer in consumers
    ]
    await settled()
    back.set()
    await settled()
    assert len(sizes) == 60
    assert sum(size or wire.max_payload for size in sizes) <= 32 * 2**20
    await end(pulls)


async def test_of_those_who_meet_a_large_message_one_asks_for_it_and_the_others_ask_again(wire):
    requests, pulls, inboxes = pulling(wire), [], []
    for _ in range(3):
        pulls.append(asyncio.ensure_future(requests.pull(CONSUMER, 9, 10, 30)))
        await settled()
        inboxes.append((wire.sinks[-1], wire.reply_to))
    wire.written = None
    for sink, reply_to in inboxes:
        sink(reply_to, b"", TOO_LARGE, b"")
        await settled()
    assert asked(wire) == (1, None)
    assert len(requests._large) == 1 and not any(pull.done() for pull in pulls)
    inboxes[0][0](b"orders", FIRST, b"", b"x")
    assert [[raw[1] for raw in await pull] for pull in pulls] == [[FIRST], [], []]
    assert asyncio.get_running_loop().time() == 0
    assert not requests._large


async def test_large_messages_of_many_come_in_turn(wire):
    """16 MB of them at a time, whoever gives up."""
    wire.max_payload = 4 * 2**20
    requests, pulls, large = pulling(wire), [], []
    for n in range(6):
        consumer = msgspec.structs.replace(CONSUMER, name=f"billing-{n}")
        pulls.append(asyncio.ensure_future(requests.pull(consumer, 9, 10, 30)))
        await settled()
        sink, reply_to = wire.sinks[-1], wire.reply_to
        before = wire.reply_to
        sink(reply_to, b"", TOO_LARGE, b"")
        await settled()
        if wire.reply_to != before:
            large.append((sink, wire.reply_to))
    assert len(large) == 3
    pulls[4].cancel()
    await settled()
    large[0][0](b"orders", FIRST, b"", b"x")
    assert [raw[1] for raw in await pulls[0]] == [FIRST]
    await settled()
    assert asked(wire) == (1, None) and b"billing-3" in wire.written[0]
    await end(pulls)


async def test_who_waits_for_another_to_get_a_large_message_waits_no_longer_than_it_may(wire):
    requests, loop = pulling(wire), asyncio.get_running_loop()
    requests._large[CONSUMER.key] = asyncio.Event()
    pull = asyncio.ensure_future(requests.pull(CONSUMER, 9, 10, 3))
    await settled()
    wire.end(TOO_LARGE)
    assert await pull == []
    assert loop.time() == 3


async def test_a_request_behind_others_that_wait_has_the_same_bound(wire):
    pull = asyncio.ensure_future(pulling(wire).pull(CONSUMER, 9, 10, 30))
    await settled()
    wire.end(b"NATS/1.0 408 Requests Pending\r\n\r\n")
    await settled()
    assert asked(wire) == (1, 10)
    await end([pull])


@pytest.mark.parametrize("ending", [b"404 No Messages", b"408 Request Timeout"])
async def test_who_waited_in_vain_asks_for_the_next_one_alone(wire, ending):
    requests = pulling(wire)
    first = asyncio.ensure_future(requests.pull(CONSUMER, 9, 1000, 30, lambda _: True))
    await settled()
    wire.end(b"NATS/1.0 %b\r\n\r\n" % ending)
    assert await first == []
    second = asyncio.ensure_future(requests.pull(CONSUMER, 9, 1000, 30, lambda _: True))
    await settled()
    assert asked(wire) == (1, None)
    await end([second])


async def test_who_was_handed_several_one_after_the_other_asks_for_many(wire):
    requests = pulling(wire)
    for came in ([1, 0], []):
        pull = asyncio.ensure_future(requests.pull(CONSUMER, 9, 1000, 30, lambda _: True))
        await settled()
        assert asked(wire) == (9, 1000)
        for behind in came:
            wire.deliver(last(behind=behind))
            wire.all_is_read()
        wire.end(b"NATS/1.0 404 No Messages\r\n\r\n")
        await pull


async def test_who_does_not_ask_again_at_once_is_given_all_there_is(wire):
    assert await next_request(wire, pulling(wire), last(behind=0), take=None) == (9, 1000)


async def test_more_is_asked_for_again_once_there_is_more(wire):
    requests = pulling(wire)
    assert await next_request(wire, requests, last(behind=0)) == (1, None)
    pull = asyncio.ensure_future(requests.pull(CONSUMER, 9, 1000, 30, lambda _: True))
    await settled()
    wire.deliver(last(behind=7))
    wire.all_is_read()
    await pull
    pull = asyncio.ensure_future(requests.pull(CONSUMER, 9, 1000, 30, lambda _: True))
    await settled()
    assert asked(wire) == (9, 1000)
    pull.cancel()
    await asyncio.wait([pull])


async def test_consumers_that_come_and_go_are_not_remembered_for_ever(wire, monkeypatch):
    monkeypatch.setattr("penstock.brokers.nats.aio.pulling._REMEMBERED", 3)
    requests = pulling(wire)
    for n in range(10):
        config = SubscriptionConfig(name=f"passing-{n}", topic="orders")
        consumer = Consumer("orders", config.name, config)
        pull = asyncio.ensure_future(requests.pull(consumer, 9, 1000, 30, lambda _: True))
        await settled()
        assert asked(wire) == (1, None), "nobody knows yet whether there are more"
        wire.deliver(last(behind=1))
        wire.all_is_read()
        await pull
    assert 0 < len(requests._with_more) <= 3


@pytest.mark.parametrize("turns", range(5))
async def test_a_pull_is_withdrawn_also_where_all_tasks_are_cancelled_again(wire, turns):
    requests = pulling(wire)
    pull = await waiting_pull(wire, requests)
    pull.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    cancel_all_others()
    wire.deliver(FIRST)
    await asyncio.sleep(0.2)
    assert pull.cancelled() and len(wire.left) == 1
    assert wire.posted == [given_back(FIRST)]
    assert not requests._seen_off and not requests._leaving
