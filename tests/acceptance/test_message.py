"""The message's specification: its behaviour requirements (BR) and acceptance criteria (AC)."""

import asyncio
from datetime import datetime

import pytest

from penstock import AckResponse, Message, PreciseTime
from penstock.errors import InvalidArgumentError
from penstock.testing import settled
from tests.support.scenes import orders


async def receive_one(data=b"", /, attributes=None, ordering_key=None, **options) -> Message:
    async with orders(**options) as (topic, sub):
        received: list[Message] = []
        sub.on("message", lambda m: (received.append(m), m.ack()))
        sub.open()
        await topic.publish_message(data, attributes, ordering_key)
        await asyncio.sleep(0.05)
        [message] = received
        return message


async def test_ac_001_basic_message_properties():
    message = await receive_one(b"Hello World", {"key": "value"})
    assert message.id
    assert message.ack_id
    assert isinstance(message.data, bytes)
    assert message.data == b"Hello World"
    assert message.attributes == {"key": "value"}
    assert isinstance(message.publish_time, datetime)
    assert isinstance(message.publish_time, PreciseTime)
    assert message.received >= message.publish_time.timestamp()


async def test_ac_002_ack_removes_message():
    async with orders(ack_deadline=1) as (topic, sub):
        count = 0

        def handle(message):
            nonlocal count
            count += 1
            if count == 1:
                message.ack()

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(0.05)
        assert count == 1
        await asyncio.sleep(1.2)
        assert count == 1


async def test_ac_003_nack_causes_immediate_redelivery():
    async with orders() as (topic, sub):
        count = 0

        def handle(message):
            nonlocal count
            count += 1
            if count == 1:
                message.nack()
            else:
                message.ack()

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(0.1)
        assert count == 2


async def test_ac_004_modify_ack_deadline():
    async with orders(ack_deadline=1) as (topic, sub):
        count = 0
        loop = asyncio.get_running_loop()

        def handle(message):
            nonlocal count
            count += 1
            if count == 1:
                message.modify_ack_deadline(5)
                loop.call_later(2, message.ack)

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(1.5)
        assert count == 1
        await asyncio.sleep(10)
        assert count == 1


async def test_ac_005_message_length_property():
    message = await receive_one(b"Hello World")
    assert message.length == len(message.data) == len(message) == 11


async def test_ac_006_empty_data_message():
    message = await receive_one(b"")
    assert isinstance(message.data, bytes)
    assert len(message.data) == 0
    assert message.length == 0
    assert message  # an empty message is still a message


async def test_ac_007_ordering_key_present():
    assert (await receive_one(b"test", None, "user-123")).ordering_key == "user-123"


async def test_ac_008_multiple_acks_are_idempotent():
    async with orders() as (topic, sub):
        errors = []

        def handle(message):
            message.ack()
            message.ack()
            message.ack()

        sub.on("message", handle)
        sub.on("error", errors.append)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(0.05)
        assert errors == []
        assert (await sub.describe()).backlog == 0


async def test_ac_009_ack_after_nack_has_no_effect():
    async with orders() as (topic, sub):
        count = 0

        def handle(message):
            nonlocal count
            count += 1
            if count < 5:
                message.nack()
            message.ack()

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(0.1)
        assert count == 5


async def test_ac_010_delivery_attempt_counter():
    async with orders() as (topic, sub):
        attempts = []

        def handle(message):
            attempts.append(message.delivery_attempt)
            if message.delivery_attempt < 3:
                message.nack()
            else:
                message.ack()

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(0.2)
        assert attempts == [1, 2, 3]


async def test_ac_011_ack_with_response_returns_success():
    async with orders(enable_exactly_once_delivery=True) as (topic, sub):
        responses = []

        async def handle(message):
            responses.append(await message.ack_with_response())

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(0.1)
        assert responses == [AckResponse.SUCCESS]
        assert responses == [0]


async def test_ac_012_nack_with_response_returns_success():
    async with orders(enable_exactly_once_delivery=True) as (topic, sub):
        responses = []

        async def handle(message):
            if message.delivery_attempt == 1:
                responses.append(await message.nack_with_response())
            else:
                responses.append(await message.ack_with_response())

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(0.1)
        assert responses == [AckResponse.SUCCESS, AckResponse.SUCCESS]


async def test_ac_013_ack_with_response_handles_invalid_ack_id():
    async with orders(enable_exactly_once_delivery=True) as (topic, sub):
        responses = []

        async def handle(message):
            responses.append(await message.ack_with_response())
            responses.append(await message.ack_with_response())

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(0.1)
        assert responses == [AckResponse.SUCCESS, AckResponse.INVALID]
        assert responses == [0, 3]


async def test_ac_014_response_methods_work_without_exactly_once():
    async with orders() as (topic, sub):
        responses = []

        async def handle(message):
            responses.append(await message.ack_with_response())

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(data=b"test")
        await asyncio.sleep(0.05)
        assert responses == [AckResponse.SUCCESS]


async def test_br_001_and_br_008_nothing_of_a_message_can_be_changed():
    message = await receive_one(b"data", {"key": "value"}, "user-1")
    readable = "id ack_id data attributes publish_time received ordering_key length subject"
    for name in [*readable.split(), "delivery_attempt"]:
        with pytest.raises(AttributeError):
            setattr(message, name, None)
    with pytest.raises(TypeError):
        message.attributes["key"] = "other"


async def test_br_008_the_publishers_own_attributes_are_not_the_messages():
    async with orders() as (topic, sub):
        received: list[Message] = []
        sub.on("message", lambda m: (received.append(m), m.ack()))
        attributes = {"key": "value"}
        await topic.publish_message(b"x", attributes)
        attributes["key"] = "changed"
        sub.open()
        await settled()
        assert received[0].attributes == {"key": "value"}


async def test_br_002_and_br_003_settling_frees_the_window():
    async with orders() as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await topic.publish_message(b"123")
        await topic.publish_message(b"12345")
        await settled()
        assert sub.stream is not None
        assert (sub.stream.statistics().messages, sub.stream.statistics().bytes) == (2, 8)
        received[0].ack()
        assert (sub.stream.statistics().messages, sub.stream.statistics().bytes) == (1, 5)
        sub.pause()
        received[1].nack()
        received[1].nack()
        assert (sub.stream.statistics().messages, sub.stream.statistics().bytes) == (0, 0)


async def test_br_004_a_deadline_of_zero_is_a_nack():
    async with orders() as (topic, sub):
        attempts = []

        def handle(message):
            attempts.append(message.delivery_attempt)
            if message.delivery_attempt == 1:
                message.modify_ack_deadline(0)
            else:
                message.ack()

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(b"x")
        await settled()
        assert attempts == [1, 2]


async def test_br_004_a_deadline_can_be_extended_again_and_again():
    async with orders(ack_deadline=1) as (topic, sub):
        received: list[Message] = []
        sub.on("message", received.append)
        sub.open()
        await topic.publish_message(b"x")
        await settled()
        for _ in range(20):
            received[0].modify_ack_deadline(3)
            await asyncio.sleep(2)
        received[0].ack()
        await asyncio.sleep(60)
        assert len(received) == 1


@pytest.mark.parametrize("seconds", [-1, 601, float("nan"), float("inf")])
async def test_br_004_deadlines_outside_0_to_600_are_refused(seconds):
    message = await receive_one(b"x")
    with pytest.raises(InvalidArgumentError) as caught:
        message.modify_ack_deadline(seconds)
    assert caught.value.code == 3
    assert str(caught.value).startswith("Ack deadline must be between 0 and 600 seconds")


async def test_br_005_expiry_counts_as_an_attempt():
    async with orders(ack_deadline=10) as (topic, sub):
        attempts = []
        sub.on("message", lambda m: attempts.append(m.delivery_attempt))
        sub.open()
        await topic.publish_message(b"x")
        await asyncio.sleep(35)
        assert attempts == [1, 2, 3, 4]


async def test_br_006_length_cannot_be_set():
    message = await receive_one(b"abc")
    with pytest.raises(AttributeError):
        message.length = 4


async def test_br_007_an_empty_message_is_settled_as_any_other():
    async with orders() as (topic, sub):
        sub.on("message", lambda m: m.ack() if m.delivery_attempt == 2 else m.nack())
        sub.open()
        await topic.publish_message(b"")
        await settled()
        assert (await sub.describe()).backlog == 0


async def test_br_009_without_an_ordering_key_it_is_none():
    assert (await receive_one(b"x")).ordering_key is None


async def test_br_010_success_is_final():
    async with orders(enable_exactly_once_delivery=True, ack_deadline=1) as (topic, sub):
        seen = []

        async def handle(message):
            seen.append(await message.ack_with_response())

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(b"x")
        await asyncio.sleep(600)
        assert seen == [AckResponse.SUCCESS]


async def test_br_010_an_ack_after_the_deadline_is_invalid():
    async with orders(enable_exactly_once_delivery=True, ack_deadline=1) as (topic, sub):
        seen = []

        async def handle(message):
            if message.delivery_attempt == 1:
                await asyncio.sleep(1.5)
            seen.append((message.delivery_attempt, await message.ack_with_response()))

        sub.on("message", handle)
        sub.open()
        await topic.publish_message(b"x")
        await asyncio.sleep(5)
        assert seen == [(2, AckResponse.SUCCESS), (1, AckResponse.INVALID)]


async def test_br_011_more_than_10_mb_is_refused_and_not_published():
    async with orders() as (topic, sub):
        await topic.publish_message(bytes(10 * 2**20))
        with pytest.raises(InvalidArgumentError) as caught:
            await topic.publish_message(bytes(10 * 2**20 + 1))
        assert caught.value.code == 3
        assert str(caught.value).startswith("Message size exceeds maximum of 10MB")
        assert (await sub.describe()).backlog == 1
