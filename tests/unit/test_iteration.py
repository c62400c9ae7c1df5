"""Receiving by `async for`."""

import asyncio

import pytest

from penstock.errors import (
    SubscriptionNotFoundError,
)
from penstock.testing import settled
from tests.scenes import orders, publish


async def test_iteration_ends_when_the_subscription_closes():
    async with orders() as (topic, sub):
        seen = []

        async def consume():
            async for message in sub:
                message.ack()
                seen.append(message.id)

        task = asyncio.ensure_future(consume())
        ids = await publish(topic, 5)
        await settled()
        await sub.close()
        await task
        assert seen == ids


async def test_iteration_raises_what_ended_the_stream():
    async with orders() as (_, sub):

        async def consume():
            async for _ in sub:
                pass

        task = asyncio.ensure_future(consume())
        await settled()
        await sub.delete()
        with pytest.raises(SubscriptionNotFoundError):
            await task


async def test_leaving_an_iteration_gives_back_what_was_not_seen():
    async with orders() as (topic, sub):
        await publish(topic, 10)
        async for received in sub:
            message = received
            break
        await settled()
        assert (await sub.describe()).leased == 1
        message.ack()
        await settled()
        assert (await sub.describe()).backlog == 9
