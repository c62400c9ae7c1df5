"""Entering and leaving."""

import asyncio

import pytest

from penstock import PubSub
from penstock.lifetime import AsyncClosing


class Gate(AsyncClosing):
    closed = 0

    async def aclose(self):
        self.closed += 1


async def test_leaving_closes_and_keeps_the_error_of_the_block():
    gate = Gate()
    async with gate as entered:
        assert entered is gate
        assert not gate.closed
    assert gate.closed == 1
    for error in (ValueError("boom"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            async with gate:
                raise error
    assert gate.closed == 3


def test_what_can_be_entered_says_how_it_is_closed():
    class Forgets(AsyncClosing):
        pass

    with pytest.raises(TypeError, match="aclose"):
        Forgets()
    assert issubclass(PubSub, AsyncClosing)
