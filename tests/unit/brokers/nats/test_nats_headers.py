"""Drafts and records as JetStream sees them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Draft, Expect
from penstock.brokers.nats.protocol.address import NatsOptions
from penstock.brokers.nats.protocol.headers import (
    check_subject,
    decode_header,
    decode_name,
    describe,
    encode_header,
    encode_name,
    status_of,
)
from penstock.brokers.nats.protocol.records import parse_ack_subject, parse_attempt, record_of
from penstock.errors import InvalidArgumentError

printable = st.text(
    st.characters(
        blacklist_categories=["Cs"], blacklist_characters="".join(map(chr, [*range(32), 127]))
    ),
    max_size=40,
)
keys = printable.filter(lambda k: k and not k.lower().startswith(("goog", "nats-", "penstock-")))


@given(
    st.dictionaries(keys, printable, max_size=6),
    printable,
    printable.filter(bool),
    st.binary(max_size=50),
)
def test_what_is_published_is_what_is_read(attributes, key, message_id, data):
    draft = Draft.of(data, attributes, key, message_id)
    record = record_of("orders", b"orders", encode_header(draft), data, 7, 5)
    assert record.attributes == attributes
    assert (record.ordering_key or "") == key
    assert record.message_id == message_id
    assert (record.sequence, record.publish_time_ns, record.subject) == (7, 5, "orders")


def test_a_draft_without_anything_needs_no_header():
    assert encode_header(Draft.of(b"x")) == b""
    assert record_of("orders", b"orders.eu", b"", b"x", 3, 1).message_id == "orders-3"


def test_expectations_and_time_to_live_become_headers():
    expect = Expect(topic="a.b", last_id="x", last_sequence=0, last_subject_sequence=4)
    block = encode_header(Draft.of(expect=expect, ttl=60))
    assert decode_header(block) == {
        "Nats-TTL": "60s",
        "Nats-Expected-Stream": "a%2Eb",
        "Nats-Expected-Last-Msg-Id": "x",
        "Nats-Expected-Last-Sequence": "0",
        "Nats-Expected-Last-Subject-Sequence": "4",
    }
    assert describe(block).attributes == {}


@pytest.mark.parametrize("key", ["Nats-Rollup", "nats-msg-id", "NATS-TTL", "Penstock-Ordering-Key"])
def test_reserved_headers_cannot_be_set(key):
    with pytest.raises(InvalidArgumentError, match="reserved"):
        encode_header(Draft.of(b"", {key: "x"}))


@pytest.mark.parametrize(
    "subject",
    [
        b"$JS.ACK.orders.billing.3.17.9.1794744036620098954.2",
        b"$JS.ACK.hub.ACCHASH.orders.billing.3.17.9.1794744036620098954.2",
        b"$JS.ACK.hub.ACCHASH.orders.billing.3.17.9.1794744036620098954.2.random",
    ],
)
def test_both_forms_of_ack_subjects_are_read(subject):
    lent = parse_ack_subject(subject)
    assert (lent.stream, lent.consumer, lent.delivered) == ("orders", "billing", 3)
    assert (lent.sequence, lent.published_ns) == (17, 1794744036620098954)
    assert parse_attempt(subject) == (3, 17, 1794744036620098954)


@pytest.mark.parametrize("name", ["orders", "a.b.c", "100%", "a%2Eb", "x.%.y"])
def test_names_survive_being_stream_names(name):
    assert decode_name(encode_name(name)) == name
    assert "." not in encode_name(name)


def test_statuses_are_told_from_messages():
    assert status_of(b"NATS/1.0 404 No Messages\r\n\r\n") == (404, "No Messages")
    assert status_of(b"NATS/1.0 503\r\n\r\n") == (503, "")
    assert status_of(b"NATS/1.0\r\na: b\r\n\r\n") == (0, "")


@pytest.mark.parametrize("subject", ["other", "ordersx", "orders.", "orders.*", "orders.a b"])
def test_subjects_must_be_inside_their_topic(subject):
    with pytest.raises(InvalidArgumentError, match="ubject"):
        check_subject("orders", subject)
    assert check_subject("orders", "orders.eu.west") == b"orders.eu.west"


def test_addresses_say_everything():
    options = NatsOptions.of(
        "tls://me:p%40ss@a:1,b?tls_ca=ca.pem&topics=x,y&group_commit=yes&timeout=2.5"
        "&inbox_prefix=_INBOX_me"
    )
    assert options.servers == ["tls://a:1", "tls://b:4222"]
    assert (options.user, options.password, options.tls) == ("me", "p@ss", True)
    assert (options.topics, options.group_commit, options.timeout) == (("x", "y"), True, 2.5)
    assert options.inbox_prefix == "_INBOX_me"
    assert NatsOptions.of("nats://secret@a").token == "secret"  # noqa: S105
    assert "p@ss" not in repr(options)


def test_a_header_that_is_repeated_is_one_attribute_with_all_its_values():
    block = b"NATS/1.0\r\nA: 1\r\nB: x\r\nA: 2\r\n\r\n"
    assert describe(block).attributes == {"A": "1, 2", "B": "x"}


@pytest.mark.parametrize(("asked", "told"), [(1, "1s"), (1.2, "2s"), (60.0, "60s")])
def test_a_message_is_not_forgotten_sooner_than_asked(asked, told):
    assert decode_header(encode_header(Draft.of(ttl=asked)))["Nats-TTL"] == told
