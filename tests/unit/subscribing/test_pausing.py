"""Holding and going on."""

import pytest

from penstock import (
    Message,
)
from penstock.errors import (
    ClosedError,
)
from penstock.testing import settled
from tests.support.scenes import orders, publish


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
