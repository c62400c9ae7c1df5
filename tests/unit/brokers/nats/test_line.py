"""Waiting together, and going on in the order of coming."""

import asyncio

from penstock.brokers.nats.aio.line import Line
from penstock.testing import settled


async def test_who_comes_while_others_go_on_goes_on_behind_them():
    line, order = Line(), []

    async def come(who, turn):
        order.append((who, await turn))

    waiting = [asyncio.ensure_future(come(n, line.wait())) for n in range(3)]
    await settled()
    # They have their first turn before those who are told now have theirs.
    following = [asyncio.ensure_future(come(n, line.follow("same"))) for n in range(3, 6)]
    line.tell("same")
    await asyncio.gather(*waiting, *following)
    assert order == [(n, "same") for n in range(6)]
    assert not line
    assert await line.follow("known") == "known"


async def test_who_waits_for_a_newer_answer_is_not_told_the_old_one():
    line = Line()
    first = asyncio.ensure_future(line.wait())
    await settled()
    following = asyncio.ensure_future(line.follow("old"))
    asking_anew = asyncio.ensure_future(line.wait())
    line.tell("old")
    assert (await first, await following) == ("old", "old")
    await settled()
    assert not asking_anew.done()
    line.tell("new")
    assert await asking_anew == "new"


async def test_whoever_follows_goes_on_with_what_it_knows():
    line = Line()
    first = asyncio.ensure_future(line.wait())
    await settled()
    following = [asyncio.ensure_future(line.follow(n)) for n in range(100)]
    line.tell(-1)
    assert await asyncio.gather(first, *following) == [-1, *range(100)]


async def test_who_is_cancelled_keeps_nobody_back():
    line = Line()
    waiting = [asyncio.ensure_future(line.wait()) for _ in range(3)]
    await settled()
    waiting[0].cancel()
    waiting[2].cancel()
    await settled()
    line.tell("all")
    assert await waiting[1] == "all"
    assert not line
