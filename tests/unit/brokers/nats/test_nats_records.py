"""Stored messages from bytes: one by one or in columns, however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Draft
from penstock.brokers.nats.protocol.headers import encode_header
from penstock.brokers.nats.protocol.parsing import (
    COMPLETE,
    DeliveredFrom,
    DeliveredParser,
    DirectParser,
)
from penstock.brokers.nats.protocol.records import (
    delivered_records,
    direct_record,
    direct_sequence,
    moment_text,
    parse_added,
)
from penstock.clock import PreciseTime, to_ns
from penstock.errors import UnavailableError

REPLY = b"_INBOX.1.7"
NS = 1_794_744_036_620_098_954
DRAFTS = [
    Draft(b"plain", message_id="one"),
    Draft(b"with\r\nlines", {"a b": "é", "kind": "x"}, "ann", "two"),
    Draft(b""),
    Draft(bytes(3000), message_id="large"),
    Draft(b"nameless", {"kind": "y"}),
]


def direct(sequence, draft, reply=REPLY):
    """As the server answers a Direct Get."""
    own = encode_header(draft)[:-2] or b"NATS/1.0\r\n"
    moment = moment_text(NS + sequence).encode()
    block = own + (
        b"Nats-Stream: orders\r\nNats-Subject: orders.deep\r\nNats-Sequence: %d\r\n"
        b"Nats-Time-Stamp: %b\r\n\r\n" % (sequence, moment)
    )
    return reply, b"", block, draft.data


def delivered(sequence, draft, consumer=b"passing"):
    """As the server sends it to a consumer."""
    reply = b"$JS.ACK.orders.%b.1.%d.%d.%d.0" % (consumer, sequence, sequence, NS + sequence)
    return b"orders.deep", reply, encode_header(draft), draft.data


def wire(raw):
    subject, reply, block, payload = raw
    to = b"%b " % reply if reply else b""
    if not block:
        return b"MSG %b 1 %b%d\r\n%b\r\n" % (subject, to, len(payload), payload)
    size = len(block)
    return b"HMSG %b 1 %b%d %d\r\n%b%b\r\n" % (
        *(subject, to, size, size + len(payload)),
        *(block, payload),
    )


def status(code, reply=REPLY):
    return wire((reply, b"", b"NATS/1.0 %d\r\n\r\n" % code, b""))


DIRECT = [direct(n, draft) for n, draft in enumerate(DRAFTS, 1)]
DELIVERED = [delivered(n, draft) for n, draft in enumerate(DRAFTS, 1)]
DIRECT_BYTES = b"".join(
    [
        *map(wire, DIRECT[:2]),
        b"PING\r\n",
        wire(direct(99, DRAFTS[0], b"_INBOX.1.6")),
        wire(direct(98, DRAFTS[1], b"_INBOX.1.6")),
        status(204, b"_INBOX.1.6"),
        *map(wire, DIRECT[2:]),
        status(204),
    ]
)
DELIVERED_BYTES = b"".join(
    [
        wire(delivered(99, DRAFTS[1], b"another")),
        *map(wire, DELIVERED[:3]),
        b"PING\r\n",
        status(404, b"_INBOX.1.6"),
        *map(wire, DELIVERED[3:]),
    ]
)
CUTS = st.lists(st.integers(0, 5000), max_size=12).map(sorted)


def feed(parser, data, cuts):
    """As a connection does; returns what was left over."""
    rest = b""
    for low, high in pairwise([0, *[cut for cut in cuts if cut < len(data)], len(data)]):
        data_now = rest + data[low:high]
        assert not parser.status, "told to go on after the end"
        rest = data_now[parser.take(data_now) :]
        assert parser.missing >= 0
    return rest


def same(columns, records):
    """Columns and records say the same."""
    assert columns.sequences == [record.sequence for record in records]
    assert [name.decode() for name in columns.ids] == [record.message_id for record in records]
    assert [name.decode() for name in columns.subjects] == [record.subject for record in records]
    assert columns.published_us == [record.publish_time_ns // 1000 for record in records]
    assert columns.data == [record.data for record in records]
    for row, record in enumerate(records):
        assert columns.keys.get(row) == record.ordering_key
        assert columns.attributes.get(row, {}) == record.attributes


def test_a_record_is_what_was_published_whichever_way_it_comes():
    for number, draft in enumerate(DRAFTS, 1):
        found = direct_record("orders", DIRECT[number - 1])
        raw = DELIVERED[number - 1]
        assert [found] == delivered_records("orders", [raw])
        assert (found.data, dict(found.attributes)) == (draft.data, dict(draft.attributes))
        assert found.message_id == (draft.message_id or f"orders-{number}")
        assert (found.ordering_key, found.subject) == (draft.ordering_key, "orders.deep")
        assert (found.sequence, found.publish_time_ns) == (number, NS + number)
        assert direct_sequence(DIRECT[number - 1]) == number


@given(CUTS)
def test_direct_answers_are_read_into_columns_however_they_are_cut(cuts):
    said = []
    parser = DirectParser("orders", REPLY, said.append)
    assert feed(parser, DIRECT_BYTES, cuts) == b""
    assert (parser.status, said) == (204, [b"PING"])
    same(parser.columns, [direct_record("orders", raw) for raw in DIRECT])
    assert parser.columns.headers == {}


@given(CUTS)
def test_what_a_consumer_delivers_is_read_into_columns_however_it_is_cut(cuts):
    said = []
    parser = DeliveredParser(
        "orders",
        REPLY,
        said.append,
        consumer=DeliveredFrom("orders", "passing"),
        wanted=len(DRAFTS),
    )
    assert feed(parser, DELIVERED_BYTES, cuts) == b""
    assert (parser.status, parser.last, said) == (COMPLETE, len(DRAFTS), [b"PING"])
    same(parser.columns, [direct_record("orders", raw) for raw in DIRECT])


def test_fewer_messages_than_were_asked_for_end_with_a_status():
    parser = DeliveredParser(
        "orders", REPLY, print, consumer=DeliveredFrom("orders", "passing"), wanted=100
    )
    assert feed(parser, DELIVERED_BYTES + status(408), []) == b""
    assert (parser.status, len(parser.columns)) == (408, len(DRAFTS))


def test_what_follows_the_end_is_left_for_others():
    parser = DirectParser("orders", REPLY, print)
    assert feed(parser, DIRECT_BYTES + b"PING\r\n", []) == b"PING\r\n"


def test_headers_are_kept_as_they_were_stored_when_asked_for():
    parser = DirectParser("orders", REPLY, lambda _: None, headers=True)
    feed(parser, DIRECT_BYTES, [])
    same(parser.columns, [direct_record("orders", raw) for raw in DIRECT])
    assert parser.columns.headers == {
        0: {"Nats-Msg-Id": "one"},
        1: {
            "a%20b": "é",
            "kind": "x",
            "Nats-Msg-Id": "two",
            "Penstock-Ordering-Key": "ann",
        },
        3: {"Nats-Msg-Id": "large"},
        4: {"kind": "y"},
    }


def test_an_answer_that_does_not_say_where_it_is_stored_is_no_record():
    with pytest.raises(UnavailableError, match="without its place"):
        parse_added("orders", b"NATS/1.0\r\nkind: x\r\n\r\n")


@pytest.mark.parametrize(
    ("fraction", "below"),
    [("", 0), (".5", 500_000_000), (".000001", 1000), (".123456789", 123_456_789)],
)
def test_the_server_leaves_out_zeros_at_the_end_of_a_moment(fraction, below):
    reply, _, block, payload = direct(1, DRAFTS[0])
    moment = moment_text(NS + 1)
    block = block.replace(moment.encode(), f"{moment[:19]}{fraction}Z".encode())
    whole = NS // 10**9 * 10**9
    raw = (reply, b"", block, payload)
    assert direct_record("orders", raw).publish_time_ns == whole + below
    parser = DirectParser("orders", REPLY, print)
    feed(parser, wire(raw) + status(204), [])
    assert parser.columns.published_us == [(whole + below) // 1000]


@given(st.integers(0, 4_000_000_000), st.integers(0, 999_999_999))
def test_moments_survive_being_text(seconds, below):
    ns = seconds * 10**9 + below
    text = moment_text(ns)
    assert to_ns(PreciseTime.from_ns(ns)) == ns
    block = (
        b"NATS/1.0\r\nNats-Stream: o\r\nNats-Subject: o\r\nNats-Sequence: 1\r\n"
        b"Nats-Time-Stamp: %b\r\n\r\n" % text.encode()
    )
    assert parse_added("o", block).published_ns == ns
