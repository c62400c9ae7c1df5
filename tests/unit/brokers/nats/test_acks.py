"""Acks of what was published, however they come: each is its own draft's."""

import asyncio
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.nats.aio.parser import LeanParser
from penstock.brokers.nats.aio.publishing import Publishing
from penstock.brokers.nats.catalogue import Routes
from penstock.errors import PermissionDeniedError, UnavailableError
from penstock.message import Draft, PublishFault
from penstock.testing import run_virtual, settled
from tests.support.scenes import now

MANY = 1100  # More than are known by heart.


class Wire:
    """Takes what is written; acks come when the test says so."""

    max_payload = 2**20
    timeout = 5.0

    def __init__(self):
        self.parser = LeanParser(SimpleNamespace(), {b"1": self._other})
        self.replies = []

    def on_loss(self, act):
        self.lose = act

    def loss(self, told):
        return UnavailableError(told)

    async def until_connected(self):
        pass

    def subscribe_runs(self, subject, rest, sink, other):
        pattern = rb"MSG %b\.%b" % (re.escape(subject.encode()), rest % b"1")
        self.parser.alike = (re.compile(pattern), sink)
        self._sink = other

    def _other(self, *message):
        self._sink(*message)

    async def write(self, parts, at_once=False):
        self.replies.append(re.findall(rb"PUB \S+ (\S+) ", b"".join(parts)))

    def ack(self, replies):
        """Each is stored at its index in its call and a thousand times the call's number."""
        stored = []
        for reply in replies:
            call, index = map(int, reply.split(b".")[-2:])
            answer = b'{"stream":"orders","seq":%d}' % (10_000 * call + index)
            stored.append(b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(answer), answer))
        assert self.parser.feed(b"".join(stored)) == b""


def publishing(*, alone=False):
    async def routes(_topic):
        return Routes((), (), alone)

    wire = Wire()
    options = SimpleNamespace(inbox_prefix="_INBOX.ours", timeout=5.0, group_commit=False)
    connection = SimpleNamespace(wire=wire, options=options)
    ours = Publishing(connection, SimpleNamespace(routes=routes))
    ours.open()
    return wire, ours


async def sequences(counts, arrange):
    """What so many drafts each are told in calls side by side, when acks come as arranged."""
    wire, ours = publishing(alone=True)
    calls = [
        asyncio.ensure_future(
            ours.publish("orders", [Draft(b"x", {}, None, f"{call}-{n}") for n in range(count)])
        )
        for call, count in enumerate(counts)
    ]
    while len(wire.replies) < len(counts):
        await asyncio.sleep(0)
    for run in arrange([reply for call in wire.replies for reply in call]):
        wire.ack(run)
        await settled()
    return [[answer.sequence for answer in answers] for answers in await asyncio.gather(*calls)]


def expected(counts):
    return [[10_000 * call + n for n in range(count)] for call, count in enumerate(counts, 1)]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.randoms(), st.booleans())
def test_acks_in_any_order_and_repeated_reach_their_drafts(counts, chance, shuffled):
    def arrange(replies):
        if shuffled:
            chance.shuffle(replies)
        while replies:
            cut = chance.randint(1, len(replies))
            yield replies[:cut]
            # Some are acked again: the ack of an earlier attempt, or of a leader that went.
            yield replies[:cut][-chance.randint(1, 3) :]
            replies = replies[cut:]

    assert run_virtual(sequences(counts, arrange)) == expected(counts)


async def test_a_call_of_very_many_is_acked_like_any_other():
    assert await sequences([MANY], lambda replies: [replies]) == expected([MANY])


async def published(wire, ours, *, acked=2):
    """Two drafts, and the subjects that their acks go to; so many of them are acked."""
    drafts = [Draft(b"x", {}, None, f"{n}") for n in range(2)]
    call = asyncio.ensure_future(ours.publish("orders", drafts))
    calls = len(wire.replies)
    while len(wire.replies) == calls:
        await asyncio.sleep(0)
    wire.ack(wire.replies[-1][:acked])
    await call
    return wire.replies[-1]


async def test_subjects_whose_acks_are_all_here_are_used_again():
    wire, ours = publishing(alone=True)
    first = await published(wire, ours)
    assert await published(wire, ours) == first


async def test_subjects_of_an_ack_that_may_still_come_are_never_used_again():
    wire, ours = publishing(alone=True)
    late = await published(wire, ours, acked=1)
    others = [await published(wire, ours) for _ in range(3)]
    assert not set(late) & {reply for replies in others for reply in replies}


async def test_subjects_of_a_cancelled_publish_are_never_used_again():
    wire, ours = publishing(alone=True)
    call = asyncio.ensure_future(ours.publish("orders", [Draft(b"x", {}, None, "1")]))
    while not wire.replies:
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    [late] = wire.replies[0]
    assert late not in await published(wire, ours)


async def test_subjects_are_not_used_again_where_two_leaders_may_ack_a_message():
    wire, ours = publishing(alone=False)
    first = await published(wire, ours)
    assert not set(first) & set(await published(wire, ours))


async def test_drafts_whose_ack_never_comes_are_the_only_ones_in_doubt():
    wire, ours = publishing()
    drafts = [Draft(b"x", {}, None, f"{n}") for n in range(4)]
    call = asyncio.ensure_future(ours.publish("orders", drafts))
    while not wire.replies:
        await asyncio.sleep(0)
    wire.ack(wire.replies[0][1:3])
    answers = await call
    assert [isinstance(answer, PublishFault) for answer in answers] == [True, False, False, True]


async def test_a_lost_connection_ends_calls_at_once_and_what_was_acked_before_is_stored():
    wire, ours = publishing()
    drafts = [Draft(b"x", {}, None, f"{n}") for n in range(3)]
    call = asyncio.ensure_future(ours.publish("orders", drafts))
    while not wire.replies:
        await asyncio.sleep(0)
    wire.ack(wire.replies[0][:1])
    began = now()
    wire.lose()
    stored, *lost = await call
    assert now() == began
    assert stored.sequence == 10_000
    assert [type(answer.error) for answer in lost] == [UnavailableError] * 2
    assert not any(answer.definite for answer in lost)


async def test_a_draft_with_more_headers_than_the_server_takes_is_refused_alone():
    wire, ours = publishing()
    large = {f"k{n}": "v" * 1024 for n in range(64)}
    call = asyncio.ensure_future(ours.publish("orders", [Draft(b"x", large), Draft(b"x")]))
    while not wire.replies:
        await asyncio.sleep(0)
    wire.ack(wire.replies[0])
    refused, stored = await call
    assert refused.definite and "65,535" in str(refused.error)
    assert stored.sequence == 10_001


async def test_whoever_may_not_publish_there_is_told_and_nobody_else():
    wire, ours = publishing()
    topics = ("orders", "invoices")
    calls = [asyncio.ensure_future(ours.publish(t, [Draft(b"x", {}, None, t)])) for t in topics]
    while len(wire.replies) < 2:
        await asyncio.sleep(0)
    ours.denied('nats: permissions violation for publish to "orders"')
    [refused] = await calls[0]
    assert isinstance(refused.error, PermissionDeniedError)
    assert not calls[1].done()
    wire.ack(wire.replies[1])
    [stored] = await calls[1]
    assert stored.message_id == "invoices"


@pytest.mark.parametrize(
    ("answer", "sequences"),
    [
        (b'{"stream":"orders","seq":8,"batch":"b","count":2}', [7, 8]),
        (b'{"stream":"orders","seq":8,"batch":"b","count":1}', None),
        (b'{"stream":"orders","seq":8}', None),
        (b'{"error":{"code":400,"err_code":10201,"description":"duplicate"}}', None),
    ],
)
async def test_a_batch_is_stored_when_the_server_says_so_of_all_of_it(answer, sequences):
    wire, ours = publishing()
    drafts = [(Draft(b"x", {}, None, f"{n}"), b"orders", b"") for n in range(2)]
    call = asyncio.ensure_future(ours.atomic("orders", drafts))
    while not wire.replies:
        await asyncio.sleep(0)
    reply = wire.replies[0][-1]
    wire.parser.feed(b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(answer), answer))
    receipts = await call
    assert (receipts and [receipt.sequence for receipt in receipts]) == sequences
