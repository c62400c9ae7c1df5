"""Suspects work alone, and nobody waits for ever."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from penstock.jobs.messaging.work_room import WorkRoom


class Watched:
    """Who is in a room, by what they were told to do, and for how long."""

    def __init__(self, quiet=60.0):
        self.room = WorkRoom(quiet)
        self.inside = set()
        self.seen = []

    @asynccontextmanager
    async def _counted(self, name):
        self.inside.add(name)
        self.seen.append((name, frozenset(self.inside)))
        try:
            yield
        finally:
            self.inside.discard(name)

    async def beside(self, name, seconds):
        await self.room.enter()
        try:
            async with self._counted(name):
                await asyncio.sleep(seconds)
        finally:
            self.room.leave()

    async def alone(self, name, seconds):
        async with self.room.alone(), self._counted(name):
            await asyncio.sleep(seconds)

    def company_of(self, name):
        """Who was there when it began, or came while it was there."""
        return {
            other for who, there in self.seen if who == name or name in there for other in there
        }


async def test_a_suspect_begins_when_the_others_have_ended_and_newcomers_wait_for_it():
    watched = Watched()
    async with asyncio.TaskGroup() as group:
        for name in ("a", "b"):
            group.create_task(watched.beside(name, 5))
        await asyncio.sleep(1)
        group.create_task(watched.alone("suspect", 5))
        await asyncio.sleep(1)
        group.create_task(watched.beside("late", 5))
    assert watched.company_of("suspect") == {"suspect"}
    assert [name for name, _ in watched.seen] == ["a", "b", "suspect", "late"]


async def test_suspects_take_turns():
    watched = Watched()
    async with asyncio.TaskGroup() as group:
        for name in ("one", "two", "three"):
            group.create_task(watched.alone(name, 200))
    assert all(there == {name} for name, there in watched.seen)


async def test_others_neither_hold_up_a_suspect_for_ever_nor_are_held_up_by_it():
    watched = Watched(quiet=60)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as group:
        group.create_task(watched.beside("hours", 7200))
        await asyncio.sleep(1)
        group.create_task(watched.alone("suspect", 7200))
        group.create_task(watched.alone("other suspect", 1))
        await asyncio.sleep(1)
        await watched.beside("late", 1)
        assert loop.time() - began == pytest.approx(1 + 60 + 60 + 1)
    assert watched.company_of("suspect") == {"suspect", "hours", "late"}
    assert "suspect" not in watched.company_of("other suspect")


async def test_a_suspect_that_is_cancelled_while_it_waits_or_works_lets_the_others_in():
    watched = Watched()
    for seconds in (1, 100):
        working = asyncio.create_task(watched.beside("a", 50))
        await asyncio.sleep(0)
        suspect = asyncio.create_task(watched.alone("suspect", 1000))
        await asyncio.sleep(seconds)
        suspect.cancel()
        await asyncio.wait({suspect})
        async with asyncio.timeout(60):
            await watched.beside("b", 1)
            await working
    assert not watched.inside
