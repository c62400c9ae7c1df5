"""Group commit: what waits while the last call runs goes together in the next.

A transaction, a sync or a write costs for fifty what it costs for one. A lone item goes at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from typing import Generic, TypeVar, cast

from penstock.errors import InternalError

Item = TypeVar("Item")
Result = TypeVar("Result")


class GroupCommit(Generic[Item, Result]):
    """Calls `act` with what waits, one call at a time; it answers every item, in order.

    A call takes at most `most` items of `most_bytes` together, as `measure` counts them; without
    it an item counts for one, whatever its size. An item larger than that goes alone.

    `all_or_none`: a call that fails has changed nothing, so its items are done again one by one;
    each gets its own failure and nobody that of another. Otherwise all of them get it.

    `quiet_turns`: where a call costs much, those who waited for the last one are about to come
    with more; the next begins when nothing has come for so many turns of the loop.

    `repeatable`: a call that is cancelled from outside, as all tasks are when their loop is about
    to end, is made again with the next that comes, or by `finished`. Otherwise who waits for it is
    cancelled too.

    A caller that is cancelled takes nobody along, and its item is left out unless its call runs.
    """

    def __init__(
        self,
        act: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        most: int = 250,
        most_bytes: int = 0,
        measure: Callable[[Item], tuple[int, int]] | None = None,
        all_or_none: bool = False,
        quiet_turns: int = 0,
        repeatable: bool = False,
    ) -> None:
        self._act = act
        self._most = most
        self._most_bytes = most_bytes
        self._measure = measure
        self._all_or_none = all_or_none
        self._quiet_turns = quiet_turns
        self._repeatable = repeatable
        # Calls must not see what happened to be set where an item came from.
        self._context = copy_context()
        self._waiting: list[Item] = []
        # By place among what waits, and in the call that runs: most settlements want no answer.
        self._answers: list[tuple[int, asyncio.Future[Result]]] = []
        self._calling: list[tuple[int, asyncio.Future[Result]]] = []
        self._batch: list[Item] = []
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Items that wait for their call to begin."""
        return len(self._waiting)

    @property
    def unanswered(self) -> int:
        """Items that wait or are in the call that runs."""
        return len(self._batch) + len(self._waiting)

    def add(self, item: Item) -> None:
        """Have it done, without an answer: `act` must tell of failures by itself."""
        self._waiting.append(item)
        if self._task is None:
            self._begin()

    def _begin(self) -> None:
        # Owned here: it ends when nothing waits, and `finished` waits for it.
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), context=self._context)
        self._task.add_done_callback(self._ended)

    def ask(self, item: Item) -> asyncio.Future[Result]:
        """Have it done; the future holds the answer. Cancelling it leaves the item out."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._answers.append((len(self._waiting), answer))
        self.add(item)
        return answer

    async def do(self, item: Item) -> Result:
        return await self.ask(item)

    async def do_next(self, item: Item) -> Result:
        """`do`, before all that waits already: in the next call that is made, unless more come so
        than it takes."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._put_first([item], [(0, answer)])
        if self._task is None:
            self._begin()
        return await answer

    async def finished(self, timeout: float | None = None) -> bool:
        """Wait until nothing waits and no call runs, at most `timeout` seconds; False: not yet."""
        if self._task is not None and self._task.done():
            self._ended(self._task)
        if self._task is None and self._waiting:
            self._begin()
        if self._task is None:
            return True
        done, _ = await asyncio.wait({self._task}, timeout=timeout)
        return bool(done)

    async def aclose(self) -> None:
        """Wait for what was begun."""
        await self.finished()

    def give_up(self, answer: Result) -> None:
        """End the call that runs and drop what waits; who asked is answered so."""
        for _, waits in (*self._calling, *self._answers):
            if not waits.done():
                waits.set_result(answer)
        task = self._task
        self._forget()
        if task is not None:
            task.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._call()
                if self._quiet_turns:
                    await self._gather()
        except Exception as error:
            # Not what `act` raises, which is an answer: a fault of whoever counts or gathers.
            for _, answer in (*self._calling, *self._answers):
                if not answer.done():
                    answer.set_exception(error)
            raise
        finally:
            self._ended(cast("asyncio.Task[None]", asyncio.current_task()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """However it did: told at once, and again later in case it was before its first step."""
        if self._task is task:
            if self._repeatable and task.cancelling():
                self._task = None
                self._take_back()
            else:
                self._forget()

    def _take_back(self) -> None:
        """What was in the call waits again, before all that came since."""
        self._put_first(self._batch, self._calling)
        self._batch, self._calling = [], []

    def _put_first(
        self, items: list[Item], answers: list[tuple[int, asyncio.Future[Result]]]
    ) -> None:
        later = [(at + len(items), answer) for at, answer in self._answers]
        self._waiting, self._answers = [*items, *self._waiting], [*answers, *later]

    def _forget(self) -> None:
        """Nobody waits for ever: who is left here was cancelled with the work itself."""
        for _, answer in (*self._calling, *self._answers):
            answer.cancel()
        self._task = None
        self._waiting, self._answers = [], []
        self._batch, self._calling = [], []

    def _take(self) -> list[Item]:
        """What is in the call from now on."""
        self._batch = self._next()
        return self._batch

    def _next(self) -> list[Item]:
        cut = self._most if self._measure is None else self._measured(self._measure)
        batch, self._waiting = self._waiting[:cut], self._waiting[cut:]
        if not self._answers:
            return batch
        self._calling = [pair for pair in self._answers if pair[0] < cut]
        self._answers = [(at - cut, answer) for at, answer in self._answers if at >= cut]
        left_out = {at for at, answer in self._calling if answer.done()}
        if left_out:
            kept = [at for at in range(len(batch)) if at not in left_out]
            places = {at: place for place, at in enumerate(kept)}
            self._calling = [(places[at], a) for at, a in self._calling if at in places]
            batch = [batch[at] for at in kept]
        return batch

    def _measured(self, measure: Callable[[Item], tuple[int, int]]) -> int:
        """How many of those that wait go together."""
        count = size = 0
        for at, item in enumerate(self._waiting):
            of_item, bytes_of_item = measure(item)
            count += of_item
            size += bytes_of_item
            if at and (count > self._most or size > self._most_bytes):
                return at
        return len(self._waiting)

    async def _call(self) -> None:
        try:
            results = await self._answered()
        except Exception as error:
            await self._call_failed(error)
        else:
            for at, answer in self._calling:
                if not answer.done():
                    answer.set_result(results[at])
        self._batch, self._calling = [], []

    async def _answered(self) -> Sequence[Result]:
        """Take what goes together and have it done."""
        batch = self._take()
        return await self._results(batch) if batch else []

    async def _call_failed(self, error: Exception) -> None:
        # One that could not even begin would not begin for each of them either.
        began = bool(self._batch)
        batch = self._batch if began else self._take()
        if began and self._all_or_none and len(batch) > 1:
            await self._one_by_one(batch)
        else:
            _fail(self._calling, error)

    async def _one_by_one(self, batch: list[Item]) -> None:
        for at, answer in self._calling:
            try:
                [result] = await self._results([batch[at]])
            except Exception as error:
                _fail([(at, answer)], error)
            else:
                if not answer.done():
                    answer.set_result(result)

    async def _results(self, batch: list[Item]) -> Sequence[Result]:
        results = await self._act(batch)
        if len(results) != len(batch):
            raise InternalError(f"{len(results)} answers came for {len(batch)} items")
        return results

    async def _gather(self) -> None:
        quiet = 0
        while quiet < self._quiet_turns and len(self._waiting) < self._most:
            waiting = len(self._waiting)
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == waiting else 0


def _fail(calling: Sequence[tuple[int, asyncio.Future[Result]]], error: Exception) -> None:
    for _, answer in calling:
        if not answer.done():
            answer.set_exception(error)
