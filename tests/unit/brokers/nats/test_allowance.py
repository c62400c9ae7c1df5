"""What all requests of a connection ask for together."""

import asyncio
from types import SimpleNamespace

import pytest

from penstock.brokers.nats.aio.allowance import Allowance
from penstock.testing import settled

MB = 2**20


def allowance(largest=MB):
    return Allowance(SimpleNamespace(max_payload=largest))


@pytest.mark.parametrize(
    ("asked", "share"), [(0, 4 * MB), (24 * MB, 4 * MB), (26 * MB, 3 * MB), (31 * MB, MB // 2)]
)
def test_who_asks_for_many_gets_half_of_what_is_left(asked, share):
    shares = allowance()
    with shares.asking(asked):
        assert shares.share(100) == share


def test_every_request_may_ask_for_a_little_however_many_there_are():
    shares = allowance()
    with shares.asking(100 * MB):
        assert shares.share(100) == shares.share(1) == 32 * 1024


def test_a_message_may_be_larger_than_what_one_request_asks_for():
    shares = allowance(largest=8 * MB)
    assert shares.share(100) == shares.share(1) == shares.one > 8 * MB


def test_one_message_may_be_of_any_size_while_half_is_left():
    shares = allowance()
    with shares.asking(14 * MB):
        assert shares.is_plenty
        with shares.asking(MB):
            assert not shares.is_plenty
        assert shares.is_plenty


async def test_those_who_ask_for_a_message_of_any_size_take_turns():
    shares, going, done = allowance(largest=8 * MB), [], asyncio.Event()

    async def ask(number):
        async with shares.turn():
            going.append(number)
            await done.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(ask(number))
        await settled()
        assert going == [0]
        done.set()
    assert going == [0, 1, 2]
