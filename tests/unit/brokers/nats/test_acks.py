"""Acks of what was published, however they come: each is its own draft's."""

import asyncio
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.nats.aio.parser import LeanParser
from penstock.brokers.nats.aio.publishing import Publishing
from penstock.brokers.nats.aio.reply_names import TRIAL
from penstock.brokers.nats.catalogue import Routes
from penstock.errors import DeadlineExceededError, PermissionDeniedError, UnavailableError
from penstock.message import Draft, PublishFault, Receipt
from penstock.testing import run_virtual, settled
from tests.support.scenes import now

MANY = 1100  # More than are known by heart.


class Wire:
    """Takes what is written; acks come when the test says so."""

    max_payload = 2**20
    timeout = 5.0
    lone_server = "run 1"
    is_ready = True
    closed = False

    def __init__(self):
        self.parser = LeanParser(SimpleNamespace(), {b"1": self._other})
        self.replies = []

    def on_loss(self, act):
        self.lose = act

    def loss(self, told):
        return UnavailableError(told)

    def subscribe_runs(self, subject, rest, sink, other):
        pattern = rb"MSG %b\.%b" % (re.escape(subject.encode()), rest % b"1")
        self.parser.alike = (re.compile(pattern), sink)
        self._sink = other

    def _other(self, *message):
        self._sink(*message)

    def write_now(self, data):
        if len(self.replies) % 2:
            return False  # As when the socket is behind.
        self._take(data)
        return True

    async def write(self, parts, on_piece):
        await asyncio.sleep(0)
        on_piece()
        self._take(b"".join(parts))

    def _take(self, data):
        self.replies.append(re.findall(rb"PUB \S+ (\S+) ", data))

    def answer(self, reply, payload=b"ok"):
        """Somebody listens on the topic's subject too, and answers what is published there."""
        self.parser.feed(b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(payload), payload))

    def ack(self, replies):
        """Each is stored at its index in its call and a thousand times the call's number."""
        stored = []
        for reply in replies:
            call, index = map(int, reply.split(b".")[-2:])
            answer = b'{"stream":"orders","seq":%d}' % (10_000 * call + index)
            stored.append(b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(answer), answer))
        assert self.parser.feed(b"".join(stored)) == b""


def publishing(*, alone=False, prefix="_INBOX.ours"):
    wire = Wire()
    options = SimpleNamespace(inbox_prefix=prefix, timeout=5.0, group_commit=False)
    connection = SimpleNamespace(wire=wire, options=options)
    ours = Publishing(connection, SimpleNamespace(known_routes=lambda _: Routes((), (), alone)))
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


async def trusted(*, alone=True):
    """After a time in which everything was answered once; and the subjects that serve again."""
    wire, ours = publishing(alone=alone)
    await published(wire, ours)
    await asyncio.sleep(TRIAL)
    return wire, ours, await published(wire, ours)


async def test_subjects_whose_acks_are_all_here_are_used_again():
    wire, ours, first = await trusted()
    assert await published(wire, ours) == first


async def test_subjects_are_not_used_again_before_all_was_answered_once_for_a_while():
    wire, ours = publishing(alone=True)
    seen = [await published(wire, ours) for _ in range(9)]
    assert len({reply for replies in seen for reply in replies}) == 18


async def test_subjects_are_not_used_again_once_a_message_was_acked_twice():
    wire, ours, first = await trusted()
    wire.ack(first[1:])
    assert not set(first) & set(await published(wire, ours))
    again = asyncio.ensure_future(published(wire, ours))
    await settled()
    wire.ack(wire.replies[-1][:1] * 2)
    wire.ack(wire.replies[-1])
    assert not set(await again) & set(await published(wire, ours))


async def test_subjects_are_not_used_again_once_somebody_else_answered_late():
    wire, ours, first = await trusted()
    wire.answer(first[1])
    assert not set(first) & set(await published(wire, ours))


async def test_subjects_are_not_used_again_once_a_message_was_acked_in_two_turns():
    wire, ours, _ = await trusted()
    call = asyncio.ensure_future(published(wire, ours, acked=0))
    await settled()
    [first, second] = wire.replies[-1]
    for reply in (first, first, second):
        wire.ack([reply])
        await settled()
    assert not set(await call) & set(await published(wire, ours))


async def test_an_answer_that_comes_on_a_subject_in_use_again_fails_one_and_confirms_none():
    wire, ours, first = await trusted()
    calls = []
    for n in range(2):
        drafts = [Draft(b"x", {}, None, f"{n}")]
        calls.append(asyncio.ensure_future(ours.publish("orders", drafts)))
        await settled()
        if not n:
            # Late: of what was sent there before.
            wire.answer(first[0])
            await settled()
    [failed] = await calls[0]
    assert isinstance(failed, PublishFault)
    wire.ack([first[0]])
    await settled()
    assert not calls[1].done(), "the ack of the first is not the second's"
    wire.ack(wire.replies[-1])
    [stored] = await calls[1]
    assert stored.message_id == "1"


@pytest.mark.parametrize("turns", [0, 1])
async def test_what_is_stored_is_so_whoever_answers_as_well(turns):
    wire, ours = publishing(alone=True)
    drafts = [Draft(b"x", {}, None, f"{n}") for n in range(2)]
    call = asyncio.ensure_future(ours.publish("orders", drafts))
    await settled()
    [first, second] = wire.replies[0]
    wire.ack([first])
    for _ in range(turns):
        await settled()  # The ack is told before the answer comes.
    wire.answer(first)
    wire.ack([second])
    assert [answer.sequence for answer in await call] == expected([2])[0]


async def test_an_ack_of_a_longer_call_that_comes_late_is_nobodys():
    wire, ours, first = await trusted()
    call = asyncio.ensure_future(ours.publish("orders", [Draft(b"x", {}, None, "1")]))
    await settled()
    wire.ack(first[1:])
    await settled()
    assert not call.done()
    wire.ack(first[:1])
    [stored] = await call
    assert stored.message_id == "1"


async def test_subjects_are_not_used_again_on_another_connection():
    wire, ours, first = await trusted()
    wire.lose()
    assert not set(first) & set(await published(wire, ours))


async def test_subjects_are_not_used_again_once_the_server_is_one_of_a_cluster():
    wire, ours, first = await trusted()
    wire.lone_server = ""
    assert not set(first) & set(await published(wire, ours))


async def test_subjects_of_an_ack_that_may_still_come_are_never_used_again():
    wire, ours, _ = await trusted()
    late = await published(wire, ours, acked=1)
    others = [await published(wire, ours) for _ in range(3)]
    assert not set(late) & {reply for replies in others for reply in replies}


async def test_subjects_of_a_cancelled_publish_are_never_used_again():
    wire, ours, _ = await trusted()
    call = asyncio.ensure_future(ours.publish("orders", [Draft(b"x", {}, None, "1")]))
    await settled()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    [late] = wire.replies[-1]
    assert late not in await published(wire, ours)


async def test_subjects_are_not_used_again_where_two_leaders_may_ack_a_message():
    wire, ours, first = await trusted(alone=False)
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


async def test_a_draft_that_is_larger_than_the_server_takes_is_refused_alone():
    wire, ours = publishing()
    drafts = [Draft(b"x" * (wire.max_payload + 1)), Draft(b"x")]
    call = asyncio.ensure_future(ours.publish("orders", drafts))
    await settled()
    wire.ack(wire.replies[0])
    refused, stored = await call
    assert refused.definite and "larger" in str(refused.error)
    assert stored.sequence == 10_001


async def test_whoever_may_not_publish_there_is_told_and_nobody_else():
    wire, ours = publishing()
    topics = ("orders", "invoices")
    calls = [asyncio.ensure_future(ours.publish(t, [Draft(b"x", {}, None, t)])) for t in topics]
    while len(wire.replies) < 2:
        await asyncio.sleep(0)
    ours.denied("orders")
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


@pytest.mark.parametrize("before", ["acked", "lost", "timed out"])
async def test_a_publish_that_nobody_answers_ends_by_its_deadline_whatever_became_of_others(before):
    wire, ours = publishing()
    drafts = [Draft(b"x", {}, None, "a")]
    first = asyncio.ensure_future(ours.publish("orders", drafts))
    await asyncio.sleep(1)
    if before == "acked":
        wire.ack(wire.replies[-1])
    elif before == "lost":
        wire.lose()
    await first
    await asyncio.sleep(10)
    for _ in range(2):
        began = now()
        [answer] = await ours.publish("orders", drafts)
        assert isinstance(answer.error, DeadlineExceededError)
        assert now() - began == wire.timeout


async def test_publishes_side_by_side_each_have_their_whole_time():
    _, ours = publishing()

    async def ended(n):
        await asyncio.sleep(n)
        began = now()
        await ours.publish("orders", [Draft(b"x", {}, None, f"{n}")])
        return now() - began

    calls = [asyncio.ensure_future(ended(n)) for n in (0, 1, 1, 4.5, 9)]
    await asyncio.sleep(2)
    calls[1].cancel()
    assert await asyncio.gather(calls[0], *calls[2:]) == [5.0] * 4


@pytest.mark.parametrize("seconds", [0, 1, 4.5])
async def test_what_writing_takes_is_a_part_of_the_time_that_a_publish_has(seconds, monkeypatch):
    wire, ours = publishing()

    async def write(_, on_piece):
        on_piece()
        await asyncio.sleep(seconds)

    monkeypatch.setattr(wire, "write_now", lambda _: False)
    monkeypatch.setattr(wire, "write", write)
    began = now()
    [answer] = await ours.publish("orders", [Draft(b"x", {}, None, "a")])
    assert isinstance(answer.error, DeadlineExceededError)
    assert now() - began == wire.timeout


async def test_a_batch_has_its_whole_time_for_each_piece_that_is_written(monkeypatch):
    wire, ours = publishing()

    async def write(_, on_piece):
        for _ in range(4):
            on_piece()
            await asyncio.sleep(4)

    monkeypatch.setattr(wire, "write_now", lambda _: False)
    monkeypatch.setattr(wire, "write", write)
    began = now()
    [answer] = await ours.publish("orders", [Draft(b"x", {}, None, "a")])
    assert isinstance(answer.error, DeadlineExceededError)
    assert now() - began == 12 + wire.timeout


async def test_acks_that_wait_to_be_read_count_though_nobody_could_look_for_so_long():
    """The process stood still; what came meanwhile is read a piece in each turn of the loop."""
    wire, ours = publishing()
    drafts = [Draft(b"x", {}, None, f"{n}") for n in range(20)]
    calls = [asyncio.ensure_future(ours.publish("orders", [draft])) for draft in drafts]
    await settled()
    loop = asyncio.get_running_loop()
    loop._jumping.now += wire.timeout + 1
    for replies in wire.replies[:-1]:
        await asyncio.sleep(0.01)
        wire.ack(replies)
    began = now()
    *stored, lost = [(await call)[0] for call in calls]
    assert [answer.message_id for answer in stored] == [draft.message_id for draft in drafts[:-1]]
    assert isinstance(lost.error, DeadlineExceededError)
    assert now() - began < 1, "once, and not for long"


async def test_a_process_that_stands_still_again_and_again_does_not_wait_for_ever():
    wire, ours = publishing()
    call = asyncio.ensure_future(ours.publish("orders", [Draft(b"x", {}, None, "a")]))
    await settled()
    loop = asyncio.get_running_loop()
    loop._jumping.now += wire.timeout + 1
    await asyncio.sleep(0.1)
    assert not call.done()
    loop._jumping.now += 1
    await asyncio.sleep(0.1)
    assert call.done()


class Shaky(Wire):
    """Its connection can be lost, which is noticed when somebody writes."""

    def __init__(self):
        super().__init__()
        self.back = asyncio.Event()
        self.back.set()

    @property
    def is_ready(self):
        return self.back.is_set()

    async def until_connected(self, within=None):
        try:
            async with asyncio.timeout(self.timeout if within is None else within):
                await self.back.wait()
        except TimeoutError:
            raise UnavailableError("Not connected") from None

    def write_now(self, data):
        return False

    async def write(self, parts, on_piece):
        if not self.is_ready:
            raise UnavailableError("Not connected")
        await super().write(parts, on_piece)


class Asked:
    """A catalogue that has to ask for what is known of a topic."""

    def known_routes(self, _):
        return None

    async def routes(self, _):
        await asyncio.sleep(0)
        return Routes((), (), False)


async def lost_on_the_way(*, group_commit, messages=1, on_sent=None):
    """A publish of which nothing is written when the connection is lost."""
    wire = Shaky()
    options = SimpleNamespace(inbox_prefix="_INBOX.ours", timeout=5.0, group_commit=group_commit)
    ours = Publishing(SimpleNamespace(wire=wire, options=options), Asked())
    ours.open()
    drafts = [Draft(b"x", {}, None, "a")] * messages
    call = asyncio.ensure_future(ours.publish("orders", drafts, on_sent))
    await asyncio.sleep(0)
    wire.back.clear()
    return wire, call


@pytest.mark.parametrize("group_commit", [True, False])
async def test_what_is_not_written_when_the_connection_is_lost_waits_for_the_next(group_commit):
    told = []
    wire, call = await lost_on_the_way(group_commit=group_commit, on_sent=told.extend)
    await asyncio.sleep(3)
    assert not wire.replies
    assert not told
    wire.back.set()
    await settled()
    assert told == [0]
    wire.ack(wire.replies[0])
    [answer] = await call
    assert answer.message_id == "a"


@pytest.mark.parametrize(("group_commit", "messages"), [(True, 1), (True, 5000), (False, 1)])
async def test_what_is_not_written_within_its_time_is_told_so(group_commit, messages):
    began, told = now(), []
    wire, call = await lost_on_the_way(
        group_commit=group_commit, messages=messages, on_sent=told.extend
    )
    with pytest.raises(UnavailableError, match="Not connected"):
        await call
    assert not told
    assert now() - began == wire.timeout


async def test_what_finds_a_connection_again_after_others_found_none_is_answered_for_itself():
    wire, told = Shaky(), []
    options = SimpleNamespace(inbox_prefix="_INBOX.ours", timeout=5.0, group_commit=True)
    ours = Publishing(SimpleNamespace(wire=wire, options=options), Asked())
    ours.open()
    drafts = [Draft(b"x", {}, None, str(n)) for n in range(1001)]
    call = asyncio.ensure_future(ours.publish("orders", drafts, told.extend))
    await asyncio.sleep(0)

    async def find_it_too_late(_within):
        wire.back.set()
        raise UnavailableError("Not connected")

    wire.back.clear()
    wire.until_connected = find_it_too_late
    await settled()
    assert told == [1000]
    wire.ack(wire.replies[-1])
    *unsent, last = await call
    assert last.message_id == "1000"
    assert {type(answer.error) for answer in unsent} == {UnavailableError}


async def test_it_is_told_that_drafts_are_sent_when_they_are_written_and_not_that_others_are():
    wire, ours = publishing()
    drafts = [Draft(b"x"), Draft(b"x", {"a": "b" * 10**6}), Draft(b"x")]
    for _ in range(2):  # Written at once, and with what else is.
        told = []
        call = asyncio.ensure_future(ours.publish("orders", drafts, told.extend))
        await settled()
        assert told == [0, 2]
        wire.ack(wire.replies[-1])
        await call


async def test_it_is_not_told_that_what_could_not_be_written_is_sent(monkeypatch):
    wire, ours = publishing()

    async def fail(_, on_piece):
        raise UnavailableError("not taken")

    monkeypatch.setattr(wire, "write_now", lambda _: False)
    monkeypatch.setattr(wire, "write", fail)
    told = []
    [answer] = await ours.publish("orders", [Draft(b"x")], told.extend)
    assert isinstance(answer.error, UnavailableError)
    assert not told


async def test_what_is_written_in_part_when_the_connection_is_lost_was_sent(monkeypatch):
    """Some of it may be stored, and acked."""
    wire, ours = publishing()

    async def break_off(_, on_piece):
        on_piece()
        await asyncio.sleep(1)
        raise UnavailableError("lost")

    monkeypatch.setattr(wire, "write_now", lambda _: False)
    monkeypatch.setattr(wire, "write", break_off)
    told = []
    [answer] = await ours.publish("orders", [Draft(b"x")], told.extend)
    assert isinstance(answer.error, UnavailableError)
    assert told == [0]


REFUSED = "orders.b"


async def test_a_message_that_is_refused_takes_no_other_with_it():
    wire, ours = publishing()
    ours._catalogue.known_routes = lambda _: Routes(("orders.>",), (), False)
    drafts = [Draft(b"x", {}, None, to, subject=f"orders.{to}") for to in "abB"]
    call = asyncio.ensure_future(ours.publish("orders", drafts))
    await settled()
    ours.denied(REFUSED)
    await settled()
    assert not call.done()
    first, _, last = wire.replies[-1]
    wire.ack([last, first])
    answers = await call
    assert [type(answer) for answer in answers] == [Receipt, PublishFault, Receipt]
    assert isinstance(answers[1].error, PermissionDeniedError)


async def test_what_was_answered_before_its_subject_was_refused_stays_answered():
    wire, ours = publishing()
    ours._catalogue.known_routes = lambda _: Routes(("orders.>",), (), False)
    drafts = [Draft(b"x", {}, None, str(n), subject="orders.b") for n in range(2)]
    call = asyncio.ensure_future(ours.publish("orders", drafts))
    await settled()
    wire.answer(wire.replies[-1][0], b'{"stream":"orders","seq":3,"duplicate":true}')
    ours.denied(REFUSED)
    stored, refused = await call
    assert (stored.sequence, stored.duplicate) == (3, True)
    assert isinstance(refused.error, PermissionDeniedError)


async def test_what_is_committed_with_a_message_that_is_refused_is_sent_again_for_itself():
    wire, ours = publishing()
    ours._catalogue.known_routes = lambda _: Routes(("orders.>",), (), False)
    ours._connection.options.group_commit = True
    calls = [
        asyncio.ensure_future(
            ours.publish("orders", [Draft(b"x", {}, None, to, subject=f"orders.{to}")])
        )
        for to in "ab"
    ]
    await settled()
    ours.denied(REFUSED)
    await settled()
    ours.denied(REFUSED)
    wire.ack([reply for call in wire.replies[1:] for reply in call if reply.endswith(b".0")][:1])
    [stored], [refused] = await asyncio.gather(*calls)
    assert stored.message_id == "a"
    assert isinstance(refused.error, PermissionDeniedError)


async def test_what_is_committed_together_is_told_of_to_each():
    wire, ours = publishing()
    ours._connection.options.group_commit = True
    told = [], [], []
    calls = [
        asyncio.ensure_future(ours.publish("orders", [Draft(b"x")] * n, told[n].extend))
        for n in (1, 2)
    ]
    await settled()
    assert told == ([], [0], [0, 1])
    [reply] = [text for text in wire.replies[-1] if text.startswith(b"_INBOX")]
    stored = b'{"stream":"orders","seq":8,"batch":"b","count":3}'
    wire.answer(reply, stored)
    assert [len(answers) for answers in await asyncio.gather(*calls)] == [1, 2]


def timers():
    return [t for t in asyncio.get_running_loop()._scheduled if not t.cancelled()]


@pytest.mark.parametrize("before", ["answered", "waits", "is refused"])
async def test_a_connection_that_is_closed_leaves_no_timer_behind(before):
    wire, ours = publishing()

    async def refuse(_, on_piece):
        raise UnavailableError("closed")

    if before == "is refused":
        wire.closed, wire.write_now, wire.write = True, lambda _: False, refuse
    call = asyncio.ensure_future(ours.publish("orders", [Draft(b"x", {}, None, "a")]))
    await settled()
    if before == "answered":
        wire.ack(wire.replies[-1])
        await call
        assert timers(), "one for all, kept for the next"
    if before != "is refused":
        wire.lose()
    await call
    assert not timers()


async def test_an_inbox_prefix_may_have_any_character_a_subject_has():
    wire, ours = publishing(prefix="_IN%BOX")
    call = asyncio.ensure_future(ours.publish("orders", [Draft(b"x", {}, None, "a")]))
    await settled()
    assert wire.replies[-1][0].startswith(b"_IN%BOX.")
    wire.ack(wire.replies[-1])
    assert [answer.message_id for answer in await call] == ["a"]


async def test_an_ack_that_is_read_in_the_turn_in_which_its_time_is_up_counts():
    wire, ours = publishing()
    call = asyncio.ensure_future(ours.publish("orders", [Draft(b"x", {}, None, "a")]))
    await settled()
    loop = asyncio.get_running_loop()
    until = loop.time() + wire.timeout
    loop.call_at(until - 1e-10, wire.ack, wire.replies[-1])
    [answer] = await call
    assert loop.time() == pytest.approx(until)
    assert answer.message_id == "a"
