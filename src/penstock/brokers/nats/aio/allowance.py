"""How much the requests of a connection may bring at once, those of all its subscriptions.

A server ends a connection on which more waits to be read than it holds back for one client, 64 MB
unless told otherwise, and what it held is lent to others when its deadline has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from penstock.brokers.nats.aio.wire import Wire

# Half of what it holds back for requests that say how many bytes they want, and a quarter for those
# that want a message however large it is.
_TOGETHER = 32 * 2**20
_LARGE = 16 * 2**20
# One request asks for no more while few others do, unless a message may be larger; and for so much
# at least, however many there are: a thousand may together ask for all that the server holds back.
# What is larger than that comes in its turn.
_EACH = 4 * 2**20
_LEAST = 32 * 1024
# What counts beside a message: subjects.
_NAMES = 8192


class Allowance:
    """Bytes that are asked for, and turns of those who ask for one message of any size."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._asked = 0
        self._turns: asyncio.Semaphore | None = None

    @property
    def one(self) -> int:
        """What a message may have, with its headers and subjects."""
        return self._wire.max_payload + _NAMES

    def share(self, messages: int) -> int:
        """Bytes that another request, for so many messages, may ask for."""
        if messages == 1:
            return self.one if self.is_plenty else _LEAST
        return max(min(max(_EACH, self.one), (_TOGETHER - self._asked) // 2), _LEAST)

    @property
    def is_plenty(self) -> bool:
        """Less than half is asked for: the rest is for those who ask for many."""
        return self._asked + self.one <= _TOGETHER // 2

    @contextmanager
    def asking(self, size: int) -> Iterator[None]:
        """A request for so many bytes is under way."""
        self._asked += size
        try:
            yield
        finally:
            self._asked -= size

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """To ask for one message of any size."""
        if self._turns is None:
            # Of any later connection too: the servers of a cluster take the same.
            self._turns = asyncio.Semaphore(max(1, _LARGE // self.one))
        async with self._turns:
            yield
