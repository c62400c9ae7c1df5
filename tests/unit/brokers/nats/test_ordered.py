"""Receiving in order from a server that is told what to do: what a key waits for is asked for."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest

from penstock.brokers.nats.aio.allowance import Allowance
from penstock.brokers.nats.aio.running import Running
from penstock.brokers.nats.ordered import OrderedQueue
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.brokers.nats.protocol.records import parse_ack_subject
from penstock.brokers.nats.protocol.requests import nak, nak_delay
from penstock.config import SubscriptionConfig
from penstock.errors import UnavailableError
from penstock.message import Delivery, Record
from penstock.testing import settled

CONFIG = SubscriptionConfig(name="billing", topic="orders", message_ordering=True)
CONSUMER = Consumer("orders", "billing", CONFIG)
PINNED = Consumer("orders", "billing", CONFIG, "ordered", is_pinned=True)
NEXT = "$JS.API.CONSUMER.MSG.NEXT.orders.billing"


class Server:
    """Lends messages of one key for requests: what came back before what is new."""

    timeout = 5.0
    max_payload = 2**20
    connected = True
    lone_server = "first run"

    def __init__(self, messages):
        self.running = Running()
        self.new = list(range(1, messages + 1))
        self.back = []
        self.attempts = {}
        self.requests = 0
        self.asked = []
        self.looked_at = []
        self.waiting = []
        self.answers = True
        self.given_back = []
        self.renewed = []
        self.unpinned = []
        self.left_at = []
        self.heard_all = 0
        self.behind = 5
        self.questions = 0
        self.answered = None
        self.silent = None
        self.headers = b""
        self.size = 1

    def on_loss(self, act):
        self.lose = act

        def forget():
            self.lose = None

        return forget

    def loss(self):
        return UnavailableError("lost")

    async def until_connected(self):
        pass

    def subscribe(self, subject, sink):
        self._sink = sink
        return lambda: self.left_at.append(asyncio.get_running_loop().time())

    async def write(self, parts):
        for part in parts:
            head, _, body = part.partition(b"\r\n")
            assert head.split()[1].decode() == NEXT
            self.requests += 1
            self.reply = head.split()[2]
            request = msgspec.json.decode(body.strip())
            self.asked.append(request)
            self.waiting.append(request)
            loop = asyncio.get_running_loop()
            loop.call_later(request["expires"] / 1e9, self.expire, self.requests)
        self.serve()

    def expire(self, request):
        if self.answers and self.waiting and request == self.requests:
            self.refuse(b"408 Request Timeout")

    def post(self, parts):
        """What is given back or renewed, nobody waits for it."""
        for part in parts:
            head, _, body = part.partition(b"\r\n")
            if body.startswith(b"-NAK"):
                sequence = parse_ack_subject(head.split()[1]).sequence
                self.given_back.append(sequence)
                self.nak(sequence, nak_delay(body.strip()))
            elif b".UNPIN." in head:
                self.unpinned.append(body.strip())
            elif body.startswith(b"+WPI"):
                self.renewed.append(parse_ack_subject(head.split()[1]).sequence)

    def nak(self, sequence, delay=0.0):
        loop = asyncio.get_running_loop()
        loop.call_later(delay, lambda: (self.back.append(sequence), self.serve()))

    def serve(self):
        while self.answers and self.waiting and (self.back or self.new):
            request = self.waiting.pop(0)
            fits = request.get("max_bytes", 2**40) // self.size
            for _ in range(min(request["batch"], fits)):
                if self.back or self.new:
                    self.lend((self.back or self.new).pop(0))
            if fits < request["batch"] and (self.back or self.new):
                self.refuse(b"409 Message Size Exceeds MaxBytes")

    def lend(self, sequence):
        attempt = self.attempts[sequence] = self.attempts.get(sequence, 0) + 1
        reply = b"$JS.ACK.orders.billing.%d.%d.1.1700000000000000000.%d" % (
            attempt,
            sequence,
            self.behind,
        )
        self._sink(b"orders", reply, self.headers, bytes(self.size))

    def refuse(self, status):
        """End the request that waits."""
        self.waiting.clear()
        self._sink(self.reply, b"", b"NATS/1.0 %b\r\n\r\n" % status, b"")

    async def read(self, topic, first, last):
        yield [Record(n, f"m-{n}", b"x", {}, "key", topic, 0) for n in range(first, last + 1)]

    async def ping(self):
        if self.silent is not None:
            await self.silent
        return 0.0

    async def hear_all(self):
        self.heard_all += 1

    def look_again_at(self, consumer):
        self.looked_at.append(consumer)

    async def info(self, _consumer):
        self.questions += 1
        if self.answered is not None:
            await self.answered
        return {
            "ack_floor": {"stream_seq": 0},
            "delivered": {"stream_seq": max(self.attempts, default=0)},
            "num_ack_pending": len(self.attempts),
        }


def decoded(consumer, raw):
    subject, reply, _, payload = raw
    lent = parse_ack_subject(reply)
    record = Record(lent.sequence, f"m-{lent.sequence}", payload, {}, "key", subject.decode(), 0)
    return Delivery(record, reply.decode(), lent.delivered, consumer.config.ack_deadline)


class Receiver:
    """A queue with one message lent and its window full of those behind it."""

    def __init__(self, server, window=2, consumer=CONSUMER, size=10**6):
        self.window = window
        self.size = size
        self.given_back = []
        self.allowance = Allowance(server)
        pulling = SimpleNamespace(
            inbox_prefix="_INBOX",
            give_back=lambda replies: self.given_back.extend(
                parse_ack_subject(reply).sequence for reply in replies
            ),
            giving_back=lambda replies: [],
            allowance=self.allowance,
        )
        self.queue = OrderedQueue(consumer, server, pulling, server, server, decoded)

    async def pull(self, wait):
        taken = await self.queue.pull(self.window, self.size, wait)
        return [delivery.record.sequence for delivery in taken]

    def nack(self, server, sequence, delay=0.0):
        server.nak(sequence, delay)
        self.queue.settling(sequence, nak(delay))
        self.queue.settled(sequence, nak(delay))


@asynccontextmanager
async def receiving(window=2, messages=1000):
    server = Server(messages)
    receiver = Receiver(server, window)
    assert await receiver.pull(1) == [1]
    await settled()
    yield server, receiver
    receiver.queue.close()


async def test_what_was_nacked_while_a_request_was_out_is_asked_for_at_once():
    async with receiving() as (server, receiver):
        server.answers = False
        assert await receiver.pull(1.5) == []  # One beyond the window is asked for by now.
        asked = server.requests
        receiver.queue.settling(1, nak(0))
        receiver.queue.settled(1, nak(0))
        # The server had sent another before it heard of the nack.
        server.waiting.clear()
        server.lend(server.new.pop(0))
        server.answers = True
        server.back.append(1)
        assert await receiver.pull(0.5) == [1]
        assert server.requests <= asked + 2


async def test_what_was_nacked_with_a_delay_is_asked_for_when_it_is_due():
    async with receiving() as (server, receiver):
        receiver.nack(server, 1, 0.2)
        assert await receiver.pull(0.5) == [1]


async def test_a_server_that_is_late_with_what_is_due_is_asked_again_soon():
    async with receiving() as (server, receiver):
        receiver.nack(server, 1, 0.25)
        receiver.queue._book.returning[1] -= 0.05
        assert await receiver.pull(0.5) == [1]


async def test_what_never_comes_back_is_not_asked_for_again_and_again():
    async with receiving() as (server, receiver):
        asked = server.requests
        receiver.queue.settling(1, nak(0))
        receiver.queue.settled(1, nak(0))
        assert await receiver.pull(30) == []
        assert 30 <= server.requests - asked < 45


async def test_what_went_back_to_make_room_is_there_when_its_turn_comes():
    async with receiving(window=1) as (server, receiver):
        assert await receiver.pull(100) == []
        went_back = server.given_back[-1]
        for sequence in range(1, went_back):
            receiver.queue.settled(sequence, b"+ACK")
            assert await receiver.pull(1.5) == [sequence + 1]


async def test_who_has_what_is_asked_again_when_nobody_answered():
    server = Server(messages=1)
    loop = asyncio.get_running_loop()
    server.answered = loop.create_future()
    receiver = Receiver(server)
    server.answered.set_exception(UnavailableError("no leader"))
    assert await receiver.pull(1) == []
    server.answered = None
    assert await receiver.pull(5) == [1]
    receiver.queue.close()


async def test_a_survey_that_ends_as_another_becomes_needed_is_followed_by_that():
    server = Server(messages=1)
    server.answers = False
    server.headers = b"NATS/1.0\r\nNats-Pin-Id: ours\r\n\r\n"
    server.answered = asyncio.get_running_loop().create_future()
    receiver = Receiver(server, consumer=PINNED)
    pull = asyncio.ensure_future(receiver.pull(30))
    await settled()
    server.answered.set_result(None)
    # In the turn in which the survey ends, and after it: we are the one that is served now.
    asyncio.get_running_loop().call_soon(server.lend, 1)
    assert await pull == [1]
    receiver.queue.close()


async def test_whoever_leaves_lets_another_be_served_at_once():
    server = Server(messages=3)
    server.headers = b"NATS/1.0\r\nNats-Pin-Id: us\r\n\r\n"
    receiver = Receiver(server, consumer=PINNED)
    assert await receiver.pull(5) == [1]
    assert server.unpinned == []
    receiver.queue.close()
    assert server.unpinned == [b'{"group":"ordered"}']


async def test_after_a_lost_connection_keys_wait_until_it_is_known_who_has_what():
    async with receiving() as (server, receiver):
        server.answered = asyncio.get_running_loop().create_future()
        server.lose()
        receiver.queue.settled(1, b"+ACK")
        assert await receiver.pull(0.5) == []
        server.answered.set_result(None)
        server.attempts = {2: 1, 3: 1}  # What is here, and nothing else, is unsettled.
        assert await receiver.pull(5) == [2]


@pytest.mark.parametrize(
    ("pause", "lender", "handed_over"),
    [(0, "second run", []), (4, "second run", [2]), (0, "first run", [2]), (0, "", [2])],
)
async def test_what_a_lone_server_lent_last_is_not_handed_over_when_it_was_started_again(
    pause, lender, handed_over
):
    async with receiving() as (server, receiver):
        server.answers = False
        await asyncio.sleep(pause)
        server.lose()
        server.lone_server, server.attempts = lender, {}
        receiver.queue.settled(1, b"+ACK")
        assert await receiver.pull(0.5) == handed_over
        assert receiver.given_back == []
        server.lend(2)
        assert await receiver.pull(0.5) == [2]


async def test_whoever_is_not_served_any_more_gives_back_and_asks_who_has_what():
    async with receiving() as (server, receiver):
        server.answers = False
        assert await receiver.pull(1.5) == []  # A request waits at the server by now.
        server.answered = asyncio.get_running_loop().create_future()
        server.refuse(b"423 Nats-Wrong-Pin-Id")
        await settled()
        assert receiver.given_back == [2, 3]
        # It is served again at once; what it had given back may be with somebody else.
        server.answers = True
        server.back += [2, 3]
        server.serve()
        receiver.queue.settled(1, b"+ACK")
        assert await receiver.pull(0.5) == []
        server.answered.set_result(None)
        server.attempts = {2: 2, 3: 2}
        assert await receiver.pull(5) == [2]


async def test_what_comes_after_everybody_has_left_is_given_back():
    async with receiving() as (server, receiver):
        receiver.queue.close()
        assert receiver.given_back == [2, 3]
        server.lend(4)
        assert receiver.given_back == [2, 3, 4]


async def test_what_waits_for_its_turn_is_renewed_in_time():
    async with receiving() as (server, receiver):
        assert await receiver.pull(CONFIG.ack_deadline / 2) == []
        assert {2, 3} <= set(server.renewed)


async def test_what_waits_for_long_is_renewed_again_and_again():
    async with receiving(messages=3) as (server, receiver):
        assert await receiver.pull(2 * CONFIG.ack_deadline) == []
        assert min(server.renewed.count(sequence) for sequence in (2, 3)) >= 5


async def test_while_a_key_is_held_up_the_rest_of_the_topic_is_left_where_it_is():
    async with receiving(window=1) as (server, receiver):
        assert await receiver.pull(120) == []
        borrowed = len(server.attempts)
        assert await receiver.pull(300) == []
        # What went back for want of room comes again and again, and nothing comes with it.
        assert len(server.attempts) <= borrowed + 10


async def test_what_another_was_done_with_meanwhile_holds_up_nobody():
    async with receiving() as (server, receiver):
        server.answers = False
        assert await receiver.pull(1.5) == []
        server.refuse(b"423 Nats-Wrong-Pin-Id")
        await settled()
        # The other was given the first, which we still have, settled it and left.
        server.answers = True
        server.back += [2, 3]
        server.serve()
        server.attempts = {2: 2, 3: 2}
        assert await receiver.pull(5) == [2]


async def test_what_was_under_way_for_longer_than_it_is_lent_is_not_handed_over():
    server = Server(messages=0)
    server.answers = False  # Nothing comes through, not even that the request has ended.
    receiver = Receiver(server)
    pull = asyncio.ensure_future(receiver.pull(600))
    await asyncio.sleep(CONFIG.ack_deadline + 1)
    # Lent when it was asked for, and read only now: somebody else may have it, or be done with it.
    server.lend(1)
    await asyncio.sleep(1)
    assert not pull.done()
    server.lend(1)
    assert await pull == [1]
    receiver.queue.close()


async def test_what_is_here_is_lent_only_while_the_server_is_known_to_have_renewed_it():
    async with receiving() as (server, receiver):
        server.answers = False
        server.silent = asyncio.get_running_loop().create_future()
        assert await receiver.pull(CONFIG.ack_deadline + 1) == []
        server.attempts = {2: 1, 3: 1}
        receiver.queue.settled(1, b"+ACK")
        assert await receiver.pull(5) == []
        server.silent = None
        server.lend(2)
        assert await receiver.pull(5) == [2]


async def test_what_may_be_with_another_is_not_given_back():
    async with receiving() as (server, receiver):
        server.answers = False
        server.silent = asyncio.get_running_loop().create_future()
        assert await receiver.pull(CONFIG.ack_deadline + 1) == []
        receiver.queue.close()
        assert receiver.given_back == []


async def test_what_waited_here_is_lent_for_its_whole_deadline():
    async with receiving() as (server, receiver):
        server.answers = False
        assert await receiver.pull(CONFIG.ack_deadline / 4) == []  # Nothing is renewed by now.
        assert server.renewed == []
        receiver.queue.settled(1, b"+ACK")
        assert await receiver.pull(1) == [2]
        assert server.renewed == [2]
        receiver.queue.settled(2, b"+ACK")
        assert await receiver.pull(1) == [3]
        # It came, and went at once.
        server.lend(4)
        receiver.queue.settled(3, b"+ACK")
        assert await receiver.pull(1) == [4]
        assert server.renewed == [2, 3]


async def without_pin(server, receiver, *, window):
    """Another client was served for a moment: what waited here went back, and what was lent, which
    that one may have had, is the server's again, behind all of that."""
    server.answers = False
    assert await receiver.pull(1.5) == []  # A request waits at the server by now.
    server.refuse(b"423 Nats-Wrong-Pin-Id")
    await settled()
    receiver.window = window
    server.answers = True
    server.back += receiver.given_back


async def test_what_keys_wait_for_is_reached_behind_all_that_was_given_back():
    async with receiving(window=300) as (server, receiver):
        await without_pin(server, receiver, window=2)
        server.back.append(1)
        asked = server.requests
        assert await receiver.pull(5) == [1]
        assert server.requests - asked < 40
        for sequence in range(1, 300):
            receiver.queue.settled(sequence, b"+ACK")
            assert await receiver.pull(5) == [sequence + 1]


async def test_what_keys_wait_for_is_reached_as_soon_where_the_bytes_are_used_up():
    server = Server(1000)
    server.size = 1000
    receiver = Receiver(server, window=1000, size=300_000)
    assert await receiver.pull(1) == [1]
    await without_pin(server, receiver, window=1000)
    receiver.size = 30_000
    server.back.append(1)
    asked = server.requests
    assert await receiver.pull(5) == [1]
    assert server.requests - asked < 60
    receiver.queue.close()


async def test_more_than_can_be_looked_up_is_asked_for_until_all_of_it_is_known():
    server = Server(0)
    server.back = list(range(1, 6001))
    server.attempts = dict.fromkeys(server.back, 1)
    receiver = Receiver(server)
    assert await receiver.pull(10) == [1]
    assert server.requests < 1000
    receiver.queue.close()


async def test_while_another_has_what_keys_wait_for_what_was_given_back_comes_seldom():
    async with receiving(window=300) as (server, receiver):
        await without_pin(server, receiver, window=2)
        borrowed, before = len(server.attempts), sum(server.attempts.values())
        assert await receiver.pull(60) == []
        rounds = (sum(server.attempts.values()) - before) / 300
        assert rounds < 35
        assert len(server.attempts) < borrowed + 50
        server.back.append(1)
        assert await receiver.pull(5) == [1]


async def test_whoever_stood_still_asks_for_nothing_until_the_server_was_heard_of():
    async with receiving() as (server, receiver):
        server.answers = False
        server.silent = asyncio.get_running_loop().create_future()
        server.answered = asyncio.get_running_loop().create_future()
        assert await receiver.pull(CONFIG.ack_deadline + 5) == []
        asked, server.answers = server.requests, True
        assert await receiver.pull(30) == []
        # It would be nobody's until its deadline has passed.
        assert server.requests == asked
        server.answered.set_result(None)
        server.back += [1, 2, 3]
        assert await receiver.pull(5) == [1]


async def test_a_queue_that_was_closed_is_kept_by_nobody():
    async with receiving() as (server, receiver):
        assert server.lose is not None
        receiver.queue.close()
        assert server.lose is None
        receiver.queue.close()


async def test_what_waits_its_turn_is_bounded_in_bytes():
    """The first is lent, and those behind it on its key wait: ten of them fill the window. A few
    more are asked for, now and then, to see whether something has come back."""
    server = Server(1000)
    server.size = 1000
    receiver = Receiver(server, window=1000, size=10_000)
    assert await receiver.pull(1) == [1]
    for _ in range(200):
        assert await receiver.pull(2) == []
    assert 10 <= len(server.attempts) <= 2 * 10 + 2
    receiver.queue.settled(1, b"+ACK")
    assert await receiver.pull(1) == [2]
    receiver.queue.close()


async def test_what_a_key_waits_for_is_asked_for_though_the_bytes_are_used_up():
    server = Server(1000)
    server.size = 1000
    receiver = Receiver(server, window=1000, size=10_000)
    assert await receiver.pull(1) == [1]
    assert await receiver.pull(2) == []
    receiver.nack(server, 1)
    assert await receiver.pull(5) == [1]
    assert server.attempts[1] == 2
    receiver.queue.close()


async def test_who_asks_for_one_asks_for_little_while_others_ask_for_much():
    server = Server(10)
    receiver = Receiver(server, window=1)
    assert await receiver.pull(1) == [1]
    with receiver.allowance.asking(16 * 2**20):
        receiver.queue.settled(1, b"+ACK")
        assert await receiver.pull(1) == [2]
        assert await receiver.pull(3) == []
        assert server.asked[0].get("max_bytes") is None
        assert server.asked[-1]["max_bytes"] == 32 * 1024
    receiver.queue.close()


async def test_what_is_larger_than_others_leave_comes_in_its_turn():
    server = Server(2)
    server.size = 40_000
    receiver = Receiver(server, window=1)
    async with AsyncExitStack() as others:
        others.enter_context(receiver.allowance.asking(16 * 2**20))
        for _ in range(15):  # A sixteenth of 16 MB is less than a message with its names.
            await others.enter_async_context(receiver.allowance.turn())
        assert await receiver.pull(10) == []
        assert {request.get("max_bytes") for request in server.asked} == {32 * 1024}
        await others.aclose()
        assert await receiver.pull(1) == [1]
    receiver.queue.close()


async def test_a_turn_is_not_kept_by_who_is_sent_nothing():
    server = Server(0)
    server.size = 40_000
    receiver = Receiver(server, window=1)
    with receiver.allowance.asking(16 * 2**20):
        pull = asyncio.ensure_future(receiver.pull(10))
        await settled()
        server.refuse(b"409 Message Size Exceeds MaxBytes")
        await settled()
        assert server.asked[-1].get("max_bytes") is None
        assert server.asked[-1]["expires"] <= 0.25e9
        pull.cancel()
    receiver.queue.close()


async def test_what_is_asked_for_counts_in_the_allowance_of_the_connection():
    server = Server(0)
    server.max_payload = 8 * 2**20  # Two of them are more than those may ask for who wait.
    receiver = Receiver(server, window=1)
    assert receiver.allowance.is_plenty
    pull = asyncio.ensure_future(receiver.pull(1))
    await settled()
    assert not receiver.allowance.is_plenty
    assert await pull == []
    receiver.queue.close()
    await settled()
    assert receiver.allowance.is_plenty


async def test_who_waits_in_vain_looks_whether_the_subscription_was_changed():
    server = Server(0)
    receiver = Receiver(server)
    assert await receiver.pull(1) == []
    assert server.looked_at == []
    assert await receiver.pull(3) == []
    assert server.looked_at == [CONSUMER]
    receiver.queue.close()


async def test_what_is_given_back_after_leaving_comes_to_nobody_here():
    async with receiving() as (server, receiver):
        await receiver.queue.leave()
        assert len(server.left_at) == 1 and server.heard_all == 1
        assert receiver.given_back == [2, 3]
        asked = server.requests, server.questions
        receiver.nack(server, 1)
        await asyncio.sleep(60)
        assert (server.requests, server.questions) == asked


@pytest.mark.parametrize("how", ["lent", "nacked"])
async def test_whoever_leaves_takes_what_is_under_way_along(how):
    """Without interest, what the server is sending would reach nobody, and be lent all the same."""
    async with receiving(window=1000, messages=3) as (server, receiver):
        await asyncio.sleep(0.1)  # A request waits, and nothing comes.
        if how == "nacked":
            server.answers = False
            receiver.nack(server, 1)
        else:
            server.lend(4)
        leaving = asyncio.ensure_future(receiver.queue.leave())
        await asyncio.sleep(0.04)
        assert not server.left_at
        server.lend(5)
        await asyncio.sleep(0.04)
        assert not server.left_at
        await leaving
        assert len(server.left_at) == 1
        assert receiver.given_back == ([2, 3, 5] if how == "nacked" else [2, 3, 4, 5])


async def test_whoever_leaves_waits_no_longer_than_a_moment_for_what_never_stops():
    async with receiving(window=1000, messages=1) as (server, receiver):
        began = asyncio.get_running_loop().time()
        leaving = asyncio.ensure_future(receiver.queue.leave())
        for sequence in range(2, 60):
            server.lend(sequence)
            await asyncio.sleep(0.04)
        await leaving
        assert server.left_at == [began + 1]


async def test_a_request_that_somebody_cancelled_is_still_at_the_server():
    """As `asyncio.run` does with every task when a program ends."""
    async with receiving(window=1000, messages=1) as (server, receiver):
        began = asyncio.get_running_loop().time()
        server.lend(2)
        receiver.queue._fetching.cancel()
        await settled()
        await receiver.queue.leave()
        assert server.left_at == [pytest.approx(began + 0.05)]


async def test_where_nothing_was_asked_for_nothing_is_waited_for():
    async with receiving(window=1000, messages=1) as (server, receiver):
        began = asyncio.get_running_loop().time()
        server.refuse(b"408 Request Timeout")
        receiver.queue.settled(1, b"+ACK")
        server.answers = False
        await asyncio.sleep(0)
        receiver.queue._requests._end((0, ""))
        await receiver.queue.leave()
        assert server.left_at == [began]


async def test_whoever_pulls_keeps_what_another_leaves():
    async with receiving(window=1000, messages=3) as (server, receiver):
        pull = asyncio.ensure_future(receiver.pull(5))
        await settled()
        await receiver.queue.leave()
        assert not server.left_at and not pull.done()
        receiver.queue.settled(1, b"+ACK")
        assert await pull == [2]
        leaving = asyncio.ensure_future(receiver.queue.leave())
        await settled()
        receiver.queue.settled(2, b"+ACK")
        assert await receiver.pull(5) == [3]
        await leaving
        assert not server.left_at


async def test_leaving_that_is_cancelled_leaves_at_once():
    async with receiving(window=1000, messages=3) as (server, receiver):
        began = asyncio.get_running_loop().time()
        leaving = asyncio.ensure_future(receiver.queue.leave())
        await settled()
        leaving.cancel()
        await settled()
        assert server.left_at == [began] and receiver.given_back == [2, 3]


async def test_whoever_comes_back_asks_anew_who_has_what():
    """Also if somebody was asking when it left: what was true then need not be now."""
    async with receiving() as (server, receiver):
        answer = server.answered = asyncio.get_running_loop().create_future()
        receiver.nack(server, 1, 60)
        await settled()
        await receiver.queue.leave()
        server.answered = None
        await settled()
        assert answer.cancelled()
        asked = server.questions
        await asyncio.sleep(30)
        assert server.questions == asked
        assert await receiver.pull(0.3) == []
        assert server.questions > asked


async def test_what_went_back_to_make_room_waits_for_nothing_when_we_leave():
    """There is room elsewhere; but what a handler wants to have later stays away."""
    async with receiving(window=1) as (server, receiver):
        assert await receiver.pull(100) == []
        away = {*receiver.queue._book.out_of_the_way}
        receiver.nack(server, 1, 600)
        server.given_back.clear()
        await receiver.queue.leave()
        assert away and {*server.given_back} == away and 1 not in away
        server.given_back.clear()
        receiver.queue.close()
        assert server.given_back == [], "it may be another's by now"


@pytest.mark.parametrize("how", ["not served", "stood still"])
async def test_what_went_back_to_make_room_may_be_anothers_by_now(how):
    async with receiving(window=1) as (server, receiver):
        assert await receiver.pull(100) == []
        assert receiver.queue._book.out_of_the_way
        server.answers = False
        if how == "not served":
            receiver.queue._lose_pin()
        else:
            receiver.queue._keeping.shorten(1000)
        server.given_back.clear()
        await receiver.queue.leave()
        assert server.given_back == []


async def test_what_we_gave_back_may_be_anothers_as_soon_as_another_was_served():
    server = Server(messages=3)
    server.headers = b"NATS/1.0\r\nNats-Pin-Id: us\r\n\r\n"
    receiver = Receiver(server, consumer=PINNED, window=1)
    assert await receiver.pull(5) == [1]
    receiver.nack(server, 1, 600)
    assert receiver.queue._book.returning
    server.headers = b"NATS/1.0\r\nNats-Pin-Id: again us\r\n\r\n"
    server.lend(3)
    assert not receiver.queue._book.returning and 1 in receiver.queue._book.suspects
    receiver.queue.close()


async def test_whoever_leaves_asks_for_nothing_any_more():
    async with receiving(window=1000, messages=3) as (server, receiver):
        asked = server.requests
        leaving = asyncio.ensure_future(receiver.queue.leave())
        await settled()
        server.refuse(b"408 Request Timeout")
        await leaving
        assert server.requests == asked


async def test_a_survey_that_was_given_up_does_not_make_room_for_two():
    async with receiving() as (server, receiver):
        survey = receiver.queue._survey
        receiver.nack(server, 1, 60)
        await settled()
        survey.rest()
        server.answered = asyncio.get_running_loop().create_future()
        survey.begin()
        await settled()
        asked = server.questions
        survey.begin()
        await settled()
        assert server.questions == asked


async def test_whoever_leaves_waits_for_nothing_from_a_connection_that_is_lost():
    async with receiving(window=1000, messages=3) as (server, receiver):
        began = asyncio.get_running_loop().time()
        server.connected = False
        await receiver.queue.leave()
        assert server.left_at == [began]


async def test_a_queue_that_is_left_alone_takes_what_is_under_way_along():
    async with receiving(window=1000, messages=1) as (server, receiver):
        receiver.queue.settled(1, b"+ACK")
        left_alone = asyncio.get_running_loop().time()
        await asyncio.sleep(0.98)
        server.lend(2)
        await asyncio.sleep(0.2)
        assert server.left_at == [pytest.approx(left_alone + 1.03)]
        assert receiver.given_back == [2]


async def test_where_the_server_has_no_more_nothing_is_waited_for():
    """Also while messages come all the time, one by one."""
    async with receiving(window=1000, messages=3) as (server, receiver):
        server.behind = 0
        await asyncio.sleep(1)
        server.lend(4)
        await receiver.queue.leave()
        assert server.left_at == [1]
