"""One at a time per ordering key. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """Lets one item of each key through; the others of that key wait their turn, in order.

    Memory follows the keys that are busy: a lane ends when its last item leaves.
    """

    __slots__ = ("_current", "_queues", "waiting")

    def __init__(self) -> None:
        self._current: dict[str, T] = {}
        self._queues: dict[str, deque[T]] = {}
        self.waiting = 0
        """How many items wait behind another."""

    def __len__(self) -> int:
        """How many keys are busy."""
        return len(self._current)

    def current(self, key: str) -> T | None:
        """The item whose turn it is."""
        return self._current.get(key)

    def enter(self, key: str, item: T) -> bool:
        """True: the lane was free and is now this item's. False: it waits in the lane."""
        if key not in self._current:
            self._current[key] = item
            return True
        self._queues.setdefault(key, deque()).append(item)
        self.waiting += 1
        return False

    def replace(self, key: str, item: T) -> None:
        """Another item takes the current one's place."""
        self._current[key] = item

    def leave(self, key: str) -> T | None:
        """The lane's item is done: the next one, whose turn it now is, or None."""
        queue = self._queues.get(key)
        if queue is None:
            self._current.pop(key, None)
            return None
        following = self._current[key] = queue.popleft()
        self.waiting -= 1
        if not queue:
            del self._queues[key]
        return following

    def items_waiting(self) -> Iterator[T]:
        """Everything that waits behind another item."""
        for queue in self._queues.values():
            yield from queue

    def take_waiting(self, key: str) -> list[T]:
        """Remove and return what waits in one lane; its current item keeps the lane."""
        queue = self._queues.pop(key, None)
        self.waiting -= len(queue or ())
        return list(queue or ())

    def take_all(self) -> list[T]:
        """Remove and return what waits in every lane; current items keep their lanes."""
        waiting = list(self.items_waiting())
        self._queues.clear()
        self.waiting = 0
        return waiting

    def keep_waiting(self, wanted: Callable[[T], bool]) -> None:
        """Remove what waits and is no longer wanted."""
        for key, queue in list(self._queues.items()):
            kept = deque(item for item in queue if wanted(item))
            self.waiting -= len(queue) - len(kept)
            if kept:
                self._queues[key] = kept
            else:
                del self._queues[key]

    def clear(self) -> list[T]:
        """Free every lane; returns what was waiting."""
        self._current.clear()
        return self.take_all()
