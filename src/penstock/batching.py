"""Doing together what waits together: a transaction for fifty changes costs what one for one does.

A lone call goes at once. What comes while it runs waits, and is then done in one go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Together(Generic[Item, Result]):
    """Calls `act` with what waits, at most `most` at a time; it answers each, or changes nothing.

    When it fails for several they are done one by one, so that each gets its own failure and
    nobody that of another. A caller that is cancelled takes nobody along.
    """

    def __init__(
        self, act: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]], *, most: int = 250
    ) -> None:
        self._act = act
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def do(self, item: Item) -> Result:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, answer))
        if self._task is None:
            # Owned here: it ends when nothing waits, and `aclose` waits for it.
            self._task = loop.create_task(self._run())
        return await answer

    async def aclose(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        try:
            while self._waiting:
                batch = [one for one in self._waiting[: self._most] if not one[1].done()]
                del self._waiting[: self._most]
                if batch and not await self._answered(batch, last=len(batch) == 1):
                    for one in batch:
                        await self._answered([one], last=True)
        finally:
            self._task = None
            for _, answer in (*batch, *self._waiting):
                answer.cancel()
            self._waiting.clear()

    async def _answered(
        self, batch: list[tuple[Item, asyncio.Future[Result]]], *, last: bool
    ) -> bool:
        try:
            results = await self._act([item for item, _ in batch])
        except Exception as error:
            if not last:
                return False
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return True
        for (_, answer), result in zip(batch, results, strict=True):
            if not answer.done():
                answer.set_result(result)
        return True
