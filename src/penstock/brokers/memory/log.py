"""Reading a topic of the memory broker by sequence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from penstock.broker import Extent
from penstock.brokers.memory.registry import Registry
from penstock.clock import Clock
from penstock.message import Record
from penstock.rules.filters import parse_filter

_BATCH = 1000


class MemoryLog:
    """Holds what the topic's `message_retention` keeps; empty without one."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    async def extent(self, topic: str) -> Extent:
        state = self._registry.topic(topic)
        state.trim(self._clock.time_ns())
        oldest = state.retained.first()
        first = state.last_sequence + 1 if oldest is None else oldest.sequence
        return Extent(first, state.last_sequence, identity=state.tag)

    async def read(
        self, topic: str, first: int, last: int, filter: str = ""
    ) -> AsyncIterator[Sequence[Record]]:
        matches = parse_filter(filter).matches if filter else None
        state = self._registry.topic(topic)
        for start in range(first, min(last, state.last_sequence) + 1, _BATCH):
            batch = state.retained.between(start, min(last, start + _BATCH - 1))
            if matches is not None:
                batch = [record for record in batch if matches(record.attributes)]
            if batch:
                yield batch
