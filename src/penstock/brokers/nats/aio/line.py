"""Waiting for one thing together, and going on in the order of coming."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Line(Generic[T]):
    """Those who wait for the same answer. True while somebody stands in it, also one who was told
    and has not had a turn of the event loop since: who comes then must stand behind that one, or
    would overtake it. Cancelling one who waits leaves the others as they are.
    """

    __slots__ = ("_following", "standing")

    def __init__(self) -> None:
        # As a set that keeps the order.
        self.standing: dict[asyncio.Future[T], None] = {}
        """Their turns, for those who only ask whether there are any."""
        self._following: list[tuple[asyncio.Future[T], T]] = []

    def __bool__(self) -> bool:
        return bool(self.standing)

    async def wait(self) -> T:
        """Until all are told."""
        return await self._stand(asyncio.get_running_loop().create_future())

    async def follow(self, answer: T) -> T:
        """The answer is known: go on behind those who were told it before, if there are any."""
        if not self.standing:
            return answer
        loop = asyncio.get_running_loop()
        if not self._following:
            # The event loop wakes in the order in which it was asked to.
            loop.call_soon(self._go_on)
        turn: asyncio.Future[T] = loop.create_future()
        self._following.append((turn, answer))
        return await self._stand(turn)

    def tell(self, answer: T) -> None:
        for turn in self.standing:
            if not turn.done():
                turn.set_result(answer)

    def fail(self, error: BaseException) -> None:
        for turn in self.standing:
            if not turn.done():
                turn.set_exception(error)

    async def _stand(self, turn: asyncio.Future[T]) -> T:
        self.standing[turn] = None
        try:
            return await turn
        finally:
            del self.standing[turn]

    def _go_on(self) -> None:
        """Those who know. Whoever came behind them for a newer answer goes on waiting for it."""
        for turn, answer in self._following:
            if not turn.done():
                turn.set_result(answer)
        self._following.clear()
