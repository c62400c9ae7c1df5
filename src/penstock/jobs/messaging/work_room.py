"""Who works side by side in a process, and who works alone.

A job that kills its process takes all that run beside it along, and nobody lives to say which of
them it was. So each of them is a suspect, and suspects are never tried together: the guilty one
dies alone from then on, until it is given up, and the others succeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

QUIET = 60.0
"""Seconds that a suspect waits for the others to end, and that it is left alone with its work.
What kills is mostly quick; and others should not wait for hours, if that is what its work takes."""


class WorkRoom:
    """For one process: all its stages work in the same room.

    Whoever is beside a suspect all the same, because its work lasts longer than `quiet` seconds,
    may die with it once: then it is a suspect itself, and suspects take turns.
    """

    def __init__(self, quiet: float = QUIET) -> None:
        self._quiet = quiet
        self._inside = 0
        self._turn = asyncio.Lock()
        self._door = asyncio.Event()
        self._door.set()
        self._emptied = asyncio.Event()

    async def enter(self) -> None:
        """Work beside the others; `leave` afterwards."""
        while not self._door.is_set():
            await self._door.wait()
        self._inside += 1

    def leave(self) -> None:
        self._inside -= 1
        if not self._inside:
            self._emptied.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Work alone, after the other suspects."""
        async with self._turn:
            self._door.clear()
            try:
                await self._until_empty()
                self._inside += 1
                opening = asyncio.get_running_loop().call_later(self._quiet, self._door.set)
                try:
                    yield
                finally:
                    opening.cancel()
                    self.leave()
            finally:
                self._door.set()

    async def _until_empty(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._quiet):
                while self._inside:
                    self._emptied.clear()
                    await self._emptied.wait()
