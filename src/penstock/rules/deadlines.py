"""Many deadlines in one heap, added in groups and removed one by one. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# Rebuilding the heap costs a pass over all entries. Waiting until more than half are stale makes
# that a constant cost per removal; the slack keeps small sets from rebuilding all the time.
_SLACK = 256


class Deadlines(Generic[K]):
    """Keys with the time at which each falls due.

    Keys that arrive together share one heap entry, so a batch costs one push. Removal leaves the
    key in its entry; entries are rebuilt once most of what they hold is stale, so memory follows
    the live keys, whatever has passed through.
    """

    __slots__ = ("_due", "_entered", "_groups", "_heap")

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, Sequence[K]]] = []
        self._groups = 0
        self._entered = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def __iter__(self) -> Iterator[K]:
        return iter(self._due)

    def add(self, due: float, keys: Sequence[K]) -> None:
        """Set or move the deadline of every key to `due`. `keys` must not change afterwards."""
        self._due.update(dict.fromkeys(keys, due))
        self._groups += 1
        self._entered += len(keys)
        heappush(self._heap, (due, self._groups, keys))
        if self._entered > 2 * len(self._due) + _SLACK:
            self._rebuild()

    def discard(self, key: K) -> bool:
        """Forget a key; False when it had no deadline."""
        return self._due.pop(key, None) is not None

    def due(self, key: K) -> float | None:
        """When a key falls due; None when it has no deadline."""
        return self._due.get(key)

    def next(self) -> float | None:
        """When to look again: never after the earliest deadline, sometimes before it."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[K]:
        """Remove and return the keys whose time has come, earliest first."""
        reached: list[K] = []
        while self._heap and self._heap[0][0] <= now:
            due, _, keys = heappop(self._heap)
            self._entered -= len(keys)
            for key in keys:
                if self._due.get(key) == due:
                    del self._due[key]
                    reached.append(key)
        return reached

    def clear(self) -> None:
        self._due.clear()
        self._heap.clear()
        self._entered = 0

    def _rebuild(self) -> None:
        """Keep the live keys of each entry. A key moved to another time stays only there."""
        live: list[tuple[float, int, Sequence[K]]] = []
        for due, group, keys in self._heap:
            kept = [key for key in keys if self._due.get(key) == due]
            if kept:
                live.append((due, group, kept))
        heapify(live)
        self._heap = live
        self._entered = sum(len(keys) for _, _, keys in live)
