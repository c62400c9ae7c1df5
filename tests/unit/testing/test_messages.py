"""Messages made by hand: for tests of handlers, and from what a message consists of."""

import asyncio
import copy
import json
import pickle
from datetime import UTC, datetime

import msgspec
import pytest

from penstock import AckResponse, FlowControl, Message, PreciseTime
from penstock.errors import ClosedError, InvalidArgumentError
from penstock.message import Settlement, Verb
from penstock.testing import make_message, settled
from tests.support.scenes import orders, publish

WHEN = PreciseTime.from_ns(1_767_225_600_123_456_789)


async def test_a_message_is_made_from_what_it_consists_of():
    async with orders() as (_, sub):
        message = Message("1", "ack-1", b"Hello", {"key": "value"}, WHEN, sub, "user-1")
        assert (message.id, message.ack_id, message.data) == ("1", "ack-1", b"Hello")
        assert message.attributes == {"key": "value"}
        assert message.publish_time == WHEN
        assert message.publish_time.nanosecond == 123_456_789
        assert message.ordering_key == "user-1"
        assert (message.length, len(message), message.delivery_attempt) == (5, 5, 1)
        assert message.received > 0
        named = Message(
            id="1", ack_id="a", data=b"", attributes={}, publish_time=WHEN, subscription=sub
        )
        assert named.ordering_key is None
        assert repr(named) == "<Message '1', 0 bytes, attempt 1>"


@pytest.mark.parametrize(
    "wrong",
    [
        {"publish_time": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"publish_time": "now"},
        {"data": "text"},
        {"id": 5},
        {"ack_id": None},
        {"attributes": None},
        {"attributes": [("key", "value")]},
        {"attributes": {"key": 5}},
        {"attributes": {5: "value"}},
        {"subscription": None},
        {"ordering_key": 5},
        {"delivery_attempt": "2"},
        {"subject": None},
    ],
    ids=str,
)
def test_a_message_of_the_wrong_things_is_refused(wrong):
    right = {"id": "1", "ack_id": "a", "data": b"", "attributes": {}, "publish_time": WHEN}
    right["subscription"] = make_message()._owner
    assert Message(**right).id == "1"
    [name] = wrong
    with pytest.raises(InvalidArgumentError, match=name):
        Message(**(right | wrong))


async def test_a_message_made_again_settles_the_delivery_it_names():
    async with orders(flow_control=FlowControl(max_messages=2)) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await publish(topic, 4)
        await settled()
        first, second = (
            Message(m.id, m.ack_id, b"", {}, m.publish_time, sub) for m in list(received)
        )
        first.ack()
        assert await second.ack_with_response() is AckResponse.SUCCESS
        await settled()
        assert len(received) == 4
        assert sub.stream.statistics().bytes == 2
        assert (await sub.describe()).backlog == 2
        third = Message("x", received[2].ack_id, b"", {}, WHEN, sub)
        third.modify_ack_deadline(300)
        received[3].ack()
        await asyncio.sleep(200)
        assert (await sub.describe()).leased == 1
        third.ack()
        await sub.close()
        late = Message("x", "ack", b"", {}, WHEN, sub)
        for verb in (late.ack, late.nack, lambda: late.modify_ack_deadline(10)):
            with pytest.raises(ClosedError, match="not open"):
                verb()
        assert await late.ack_with_response() is AckResponse.FAILED_PRECONDITION


async def test_attributes_are_a_dict_that_cannot_be_changed():
    async with orders() as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await topic.publish_message(b"x", {"key": "value"})
        await settled()
        attributes = received[0].attributes
        assert json.dumps(attributes) == '{"key": "value"}'
        assert msgspec.json.encode(attributes) == b'{"key":"value"}'
        assert isinstance(attributes, dict)
        for change in (
            lambda: attributes.update(key="other"),
            lambda: attributes.pop("key"),
            lambda: attributes.clear(),
            lambda: attributes.setdefault("new", "one"),
            lambda: attributes.__setitem__("key", "other"),
            lambda: attributes.__delitem__("key"),
            lambda: attributes.__ior__({"new": "one"}),
            attributes.popitem,
        ):
            with pytest.raises(TypeError, match="copy them first"):
                change()
        for copied in (copy.copy(attributes), copy.deepcopy(attributes)):
            assert copied == {"key": "value"}
        assert pickle.loads(pickle.dumps(attributes)) == {"key": "value"}  # noqa: S301
        changed = attributes.copy() | {"new": "one"}
        changed["key"] = "other"
        assert received[0].attributes == {"key": "value"}
        received[0].ack()


@pytest.mark.parametrize("verb", ["ack", "nack", "reject"])
async def test_a_made_message_says_what_its_handler_did(verb):
    message = make_message(b"data", {"key": "value"}, "user-1", delivery_attempt=3, subject="a.b")
    assert message.outcome is None
    assert (message.data, message.ordering_key, message.subject) == (b"data", "user-1", "a.b")
    assert (message.attributes, message.delivery_attempt) == ({"key": "value"}, 3)
    message.modify_ack_deadline(60)
    assert message.outcome is None
    getattr(message, verb)()
    message.ack()
    message.nack()
    assert message.outcome == verb
    assert message.settlements == [
        Settlement(message.ack_id, Verb.EXTEND, 60.0),
        Settlement(message.ack_id, Verb(verb)),
    ]


async def test_made_messages_behave_like_received_ones():
    message = make_message(response=AckResponse.PERMISSION_DENIED)
    assert await message.ack_with_response() is AckResponse.PERMISSION_DENIED
    assert await message.nack_with_response() is AckResponse.INVALID
    assert message.outcome == "ack"
    failed = make_message()
    with pytest.raises(ValueError, match="boom"):
        async with failed:
            raise ValueError("boom")
    assert failed.outcome == "nack"
    delayed = make_message(publish_time=datetime(2026, 1, 1, tzinfo=UTC))
    delayed.nack(30)
    assert delayed.settlements[0].seconds == 30
    assert delayed.publish_time.year == 2026
    assert make_message().id != make_message().id


@pytest.mark.parametrize("excess", ["yes", 1, None])
def test_allowing_excess_is_a_yes_or_no(excess):
    with pytest.raises(InvalidArgumentError, match="allow_excess_messages must be True or False"):
        FlowControl(allow_excess_messages=excess)
