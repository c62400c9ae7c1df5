"""Holding and going on."""

import asyncio

import pytest

from penstock import (
    Message,
)
from penstock.errors import (
    ClosedError,
)
from penstock.testing import settled
from tests.support.scenes import now, orders, publish


async def test_pause_inside_a_handler_takes_effect_at_once():
    async with orders() as (topic, sub):
        received = []

        def handle(message):
            received.append(message)
            message.ack()
            sub.pause()

        sub.on("message", handle)
        await publish(topic, 3)
        sub.open()
        await settled()
        assert len(received) == 1
        sub.resume()
        await settled()
        assert len(received) == 2


async def test_what_was_called_and_has_not_begun_waits_for_the_end_of_a_pause():
    """It was not seen: it is kept however long that takes, and comes as a first attempt."""
    async with orders(ack_deadline=10) as (topic, sub):
        begun: list[Message] = []

        def note(message):
            begun.append(message)
            if len(begun) == 3:
                sub.pause()
            message.ack()

        async def handle(message):
            note(message)

        sub.on("message", handle)
        await publish(topic, 20)
        sub.open()
        await asyncio.sleep(100)
        assert len(begun) == 3
        assert sub.stream.statistics().messages == (await sub.describe()).leased == 17
        sub.resume()
        await settled()
        assert [message.delivery_attempt for message in begun] == [1] * 20


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_what_is_handed_over_after_a_pause_has_its_deadline_from_there(is_async):
    """What waited was kept; what a handler has and forgets comes again."""
    async with orders(ack_deadline=10) as (topic, sub):
        begun: list[tuple[float, int | None]] = []
        began = now()

        def note(message):
            begun.append((now() - began, message.delivery_attempt))
            if len(begun) == 1:
                message.ack()
                sub.pause()
            elif message.delivery_attempt == 2:
                message.ack()

        async def handle(message):
            note(message)
            if len(begun) == 2:
                await asyncio.sleep(1000)

        sub.on("message", handle if is_async else note)
        await publish(topic, 2)
        sub.open()
        await asyncio.sleep(100)
        sub.resume()
        await asyncio.sleep(50)
        assert begun == [(0, 1), (100, 1), (pytest.approx(110), 2)]


async def test_what_has_not_begun_is_given_back_when_a_paused_client_closes():
    async with orders() as (topic, sub):
        begun: list[Message] = []

        async def handle(message):
            begun.append(message)
            sub.pause()
            message.ack()

        sub.on("message", handle)
        await publish(topic, 5)
        sub.open()
        await settled()
        report = await sub.close()
        assert len(begun) == 1
        assert len(report.given_back) == 4


async def test_a_paused_client_leaves_messages_to_others():
    async with orders() as (topic, sub):
        mine: list[Message] = []
        sub.on("message", mine.append)
        sub.open()
        await settled()
        sub.pause()
        await publish(topic, 3)
        await settled()
        assert (await sub.describe()).leased == 0
        assert mine == []


async def test_pausing_what_is_not_open_is_an_error():
    async with orders() as (_, sub):
        for verb in (sub.pause, sub.resume):
            with pytest.raises(ClosedError, match="not open"):
                verb()
