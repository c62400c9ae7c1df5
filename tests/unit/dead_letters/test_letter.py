"""How a dead letter is written down and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Draft, PreciseTime
from penstock.dead_letters.letter import Origin, bare, cut, header_text, letter_of, read_letter
from penstock.message import Delivery, Message, Record, check_text


def message(**changes):
    record = {
        "sequence": 7,
        "message_id": "order-7",
        "data": b"\x00body",
        "attributes": {"tenant": "acme"},
        "ordering_key": "ann",
        "subject": "orders",
        "publish_time_ns": 1_767_225_600_123_456_789,
    } | changes
    [made] = Message.of([Delivery(Record(**record), "ack", 5, 60.0)], None, 0.0)
    return made


def letter(of=None, topic="orders", subscription="billing", **changes):
    given = of or message()
    said = {
        "origin": Origin(
            topic=topic,
            subscription=subscription,
            message_id=given.id,
            published=given.publish_time,
        ),
        "attempt": given.delivery_attempt,
        "ordering_key": given.ordering_key,
        "reason": "gave-up",
        "error": ValueError("no price"),
        "time_ns": 1_767_225_700_000_000_001,
    } | changes
    return letter_of(given.data, given.attributes, **said)


def stored(draft):
    return Record(3, draft.message_id, draft.data, draft.attributes, draft.ordering_key, "dead", 9)


def test_a_letter_reads_as_it_was_written():
    read = read_letter("orders-dead", stored(letter()))
    assert (read.data, dict(read.attributes), read.ordering_key) == (
        b"\x00body",
        {"tenant": "acme"},
        "ann",
    )
    assert (read.reason, read.error, read.attempt) == ("gave-up", "ValueError: no price", 5)
    assert (read.origin.topic, read.origin.subscription) == ("orders", "billing")
    assert read.origin.message_id == "order-7"
    assert read.origin.published == PreciseTime.from_ns(1_767_225_600_123_456_789)
    assert read.time == PreciseTime.from_ns(1_767_225_700_000_000_001)
    assert (read.topic, read.sequence, read.settled) == ("orders-dead", 3, None)


def test_whoever_gives_a_message_up_writes_the_same_letter():
    again = letter(reason="rejected", time_ns=1)
    assert again.message_id == letter().message_id


def test_an_id_that_was_used_for_another_message_is_another_letter():
    assert letter(message(publish_time_ns=5)).message_id != letter().message_id


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_any_error_and_any_reason_may_travel_as_attributes(error, reason):
    draft = letter(reason=reason, error=RuntimeError(error))
    Draft.of(draft.data, draft.attributes, draft.ordering_key, draft.message_id)
    assert read_letter("dead", stored(draft)).reason


@given(st.text(), st.integers(4, 40))
def test_text_for_a_header_is_clean_and_short(text, limit):
    check_text("text", header_text(text, limit), limit)


def test_text_that_fits_stays_and_text_that_does_not_says_so():
    assert header_text("ValueError: grüße", 100) == "ValueError: grüße"
    assert header_text("a\r\nNats-Rollup: all\tb", 100) == "a Nats-Rollup: all b"
    assert header_text("é" * 10, 11) == "éééé…"


def test_an_error_whose_text_cannot_be_made_is_named_all_the_same():
    class RudeError(Exception):
        def __str__(self):
            raise RuntimeError

    assert read_letter("dead", stored(letter(error=RudeError()))).error.startswith("RudeError:")


def test_a_message_that_has_all_the_attributes_it_may_have_loses_some_and_says_so():
    full = message(attributes={f"k{n}": "v" for n in range(100)})
    draft = letter(full)
    Draft.of(draft.data, draft.attributes)
    kept = read_letter("dead", stored(draft)).attributes
    assert int(draft.attributes["dead-letter-dropped"]) == 100 - len(kept) > 0


def test_a_bare_letter_says_how_much_it_left_out():
    full = message(attributes={f"k{n}": "v" for n in range(100)})
    draft = bare(letter(full))
    assert draft.attributes["dead-letter-dropped"] == "100"
    assert read_letter("dead", stored(draft)).attributes == {}
    assert draft.message_id == letter(full).message_id
    assert bare(letter()).attributes["dead-letter-dropped"] == "1"


def test_a_cut_letter_is_no_larger_than_its_message_and_says_what_is_missing():
    large = message(data=b"x" * 2**20)
    draft = cut(bare(letter(large, error="e" * 1024)))
    around = sum(len(key) + len(value) + 4 for key, value in draft.attributes.items())
    assert len(draft.data) + around + len(draft.message_id) < 2**20
    read = read_letter("dead", stored(draft))
    assert read.cut == 2**20 - len(read.data) < 10_000
    assert draft.message_id == letter(large).message_id


def test_a_letter_that_dies_again_tells_of_its_last_death():
    first = stored(letter())
    again = letter(message(attributes=first.attributes), reason="worse", topic="orders-dead")
    read = read_letter("dead-dead", stored(again))
    assert (read.reason, read.origin.topic, dict(read.attributes)) == (
        "worse",
        "orders-dead",
        {"tenant": "acme"},
    )


def test_what_a_broker_moved_by_its_own_policy_is_read_too():
    source = "CloudPubSubDeadLetterSource"
    attributes = {
        "tenant": "acme",
        f"{source}DeliveryCount": "5",
        f"{source}Subscription": "billing",
        f"{source}SubscriptionProject": "penstock",
        f"{source}TopicPublishTime": "2026-01-01T00:00:00.123456789+00:00",
    }
    read = read_letter("dead", Record(1, "x", b"body", attributes, None, "dead", 50))
    assert (read.reason, read.attempt, read.error) == ("max-delivery-attempts", 5, None)
    assert (read.origin.subscription, read.origin.topic) == ("billing", None)
    assert read.origin.published == PreciseTime.from_ns(1_767_225_600_123_456_789)
    assert dict(read.attributes) == {"tenant": "acme"}
    assert read.time == PreciseTime.from_ns(50)


@pytest.mark.parametrize("attempt", ["", "many", "-1"])
def test_a_message_that_somebody_put_there_by_hand_is_a_letter_of_unknown_reason(attempt):
    attributes = {"dead-letter-attempt": attempt, "dead-letter-time": "yesterday"}
    read = read_letter("dead", Record(1, "x", b"", attributes, None, "dead", 50))
    assert (read.reason, read.attempt, read.time) == ("unknown", 0, PreciseTime.from_ns(50))
