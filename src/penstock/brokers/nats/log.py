"""Reading a stream by sequence, with batched Direct Get: no consumer, nothing to clean up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from penstock.broker import Extent
from penstock.brokers.nats.aio.pulling import Pulling
from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.protocol.configuration import check_direct, extent_of
from penstock.brokers.nats.protocol.errors import odd_status
from penstock.brokers.nats.protocol.headers import (
    END_OF_BATCH,
    NO_MESSAGES,
    NO_RESPONDERS,
    encode_name,
)
from penstock.brokers.nats.protocol.records import (
    Raw,
    direct_record,
    direct_sequence,
    moment_text,
)
from penstock.brokers.nats.protocol.requests import direct_get
from penstock.message import Record
from penstock.rules.filters import parse_filter

_BATCH = 10_000
_BATCH_BYTES = 16 * 2**20
_SLICE = 1_000


class NatsLog:
    def __init__(self, catalogue: Catalogue, pulling: Pulling) -> None:
        self._catalogue = catalogue
        self._pulling = pulling

    async def extent(self, topic: str) -> Extent:
        return extent_of(await self._catalogue.stream_info(topic))

    async def read(
        self, topic: str, first: int, last: int, filter: str = ""
    ) -> AsyncIterator[Sequence[Record]]:
        matches = parse_filter(filter).matches if filter else None
        raws = await self._read(topic, max(first, 1), last)
        while raws:
            at = direct_sequence(raws[-1]) + 1
            # The server sends on while we decode, and we take in what it sends between slices.
            following = asyncio.ensure_future(self._read(topic, at, last))
            try:
                for start in range(0, len(raws), _SLICE):
                    await asyncio.sleep(0)
                    batch = [direct_record(topic, raw) for raw in raws[start : start + _SLICE]]
                    if at > last + 1:
                        # Direct Get has no upper end: it goes on past gaps.
                        batch = [record for record in batch if record.sequence <= last]
                    if matches is not None:
                        batch = [record for record in batch if matches(record.attributes)]
                    if batch:
                        yield batch
                raws = await following
            finally:
                following.cancel()

    async def first_after(self, topic: str, sequence: int) -> Record | None:
        """The first record beyond a sequence, if there is one."""
        found = await self._get(topic, {"seq": sequence + 1, "batch": 1}, 1)
        return direct_record(topic, found[0]) if found else None

    async def first_since(self, topic: str, moment_ns: int) -> Record | None:
        """The first record stored at or after a moment, if there is one."""
        found = await self._get(topic, {"start_time": moment_text(moment_ns), "batch": 1}, 1)
        return direct_record(topic, found[0]) if found else None

    async def _read(self, topic: str, first: int, last: int) -> list[Raw]:
        count = min(_BATCH, last - first + 1)
        if count < 1:
            return []
        return await self._get(
            topic, {"seq": first, "batch": count, "max_bytes": _BATCH_BYTES}, count
        )

    async def _get(self, topic: str, request: object, count: int) -> list[Raw]:
        raws, status = await self._pulling.read(direct_get(encode_name(topic)), request, count)
        if status == NO_RESPONDERS:
            # The topic is gone, or takes no such requests; or its servers are choosing a leader.
            check_direct(topic, await self._catalogue.stream_info(topic))
        if status not in (0, END_OF_BATCH, NO_MESSAGES):
            raise odd_status(f"Reading topic {topic!r}", status)
        return raws
