"""Work that may end without waiting for anything. Only what waits can be late, or be stopped, so
only that needs a time limit and somebody to look after it: timers cost more than many a handler."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class FirstStep(Generic[T]):
    """A coroutine, run up to where it first waits or to its end: `ended`, and then `result`. Await
    it for the rest, as the coroutine itself would have been, before anything else is awaited. What
    the first step raises is raised when this is made."""

    __slots__ = ("_waits_for", "_work", "ended", "result")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.ended = False
        self.result: T
        try:
            self._waits_for: Any = work.send(None)
        except StopIteration as end:
            self.ended, self.result = True, end.value

    def __await__(self) -> Generator[Any, Any, T]:
        if self.ended:
            return self.result
        waits_for = self._waits_for
        try:
            while True:
                try:
                    came = yield waits_for
                except BaseException as error:
                    waits_for = self._work.throw(error)
                else:
                    waits_for = self._work.send(came)
        except StopIteration as end:
            result: T = end.value
            return result
