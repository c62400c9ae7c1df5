"""Waiting for one thing together, and going on in the order of coming."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Line(Generic[T]):
    """Those who wait for the same answer. True while somebody stands in it, also one who was told
    and has not had a turn of the event loop since: who comes then must stand behind that one, or
    would overtake it. Cancelling one who waits leaves the others as they are.
    """

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: deque[asyncio.Future[T]] = deque()

    def __bool__(self) -> bool:
        return bool(self._turns)

    async def wait(self) -> T:
        """Until all are told."""
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            return await turn
        finally:
            self._turns.remove(turn)

    async def follow(self, answer: T) -> T:
        """The answer is known: go on behind those who were told it before, if there are any."""
        if not self._turns:
            return answer
        # The event loop wakes in the order in which it was asked to.
        asyncio.get_running_loop().call_soon(self.tell, answer)
        return await self.wait()

    def tell(self, answer: T) -> None:
        for turn in self._turns:
            if not turn.done():
                turn.set_result(answer)

    def fail(self, error: BaseException) -> None:
        for turn in self._turns:
            if not turn.done():
                turn.set_exception(error)
