"""One at a time per ordering key. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """Lets one item of each key through; the others of that key wait their turn, in order.

    Memory follows the keys that are busy: a lane ends when its last item leaves.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        # None while a lane is busy with nobody behind: most keys never need a queue.
        self._waiting: dict[str, deque[T] | None] = {}

    def __len__(self) -> int:
        """How many keys are busy."""
        return len(self._waiting)

    def enter(self, key: str, item: T) -> bool:
        """True: the lane was free and is now this item's. False: it waits in the lane."""
        if key not in self._waiting:
            self._waiting[key] = None
            return True
        queue = self._waiting[key]
        if queue is None:
            queue = self._waiting[key] = deque()
        queue.append(item)
        return False

    def leave(self, key: str) -> T | None:
        """The lane's item is done: the next one, whose turn it now is, or None."""
        if queue := self._waiting.get(key):
            return queue.popleft()
        self._waiting.pop(key, None)
        return None

    def waiting(self) -> Iterator[T]:
        """Everything that waits behind another item."""
        for queue in self._waiting.values():
            if queue:
                yield from queue

    def take_waiting(self, key: str) -> list[T]:
        """Remove and return what waits in one lane; its current item keeps the lane."""
        queue = self._waiting.get(key)
        if not queue:
            return []
        self._waiting[key] = None
        return list(queue)

    def clear(self) -> list[T]:
        """Free every lane; returns what was waiting."""
        left = list(self.waiting())
        self._waiting.clear()
        return left
