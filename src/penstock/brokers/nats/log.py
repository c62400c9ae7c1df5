"""Reading a stream by sequence, with batched Direct Get: no consumer, nothing to clean up."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from penstock.broker import Extent
from penstock.brokers.nats.aio.pulling import Pulling, Raw
from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.protocol.headers import encode_name, record_of
from penstock.clock import NS
from penstock.errors import InternalError, TopicNotFoundError, UnavailableError
from penstock.message import Record
from penstock.rules.filters import parse_filter

_BATCH = 10_000
_BATCH_BYTES = 16 * 2**20
_SLICE = 1_000
_NO_MESSAGE, _NO_RESPONDERS = 404, 503


class NatsLog:
    def __init__(self, catalogue: Catalogue, pulling: Pulling) -> None:
        self._catalogue = catalogue
        self._pulling = pulling

    async def extent(self, topic: str) -> Extent:
        state = (await self._catalogue.stream_info(topic))["state"]
        return Extent(max(state["first_seq"], 1), state["last_seq"])

    async def read(
        self, topic: str, first: int, last: int, filter: str = ""
    ) -> AsyncIterator[Sequence[Record]]:
        matches = parse_filter(filter).matches if filter else None
        raws = await self._read(topic, max(first, 1), last)
        while raws:
            at = _sequence(raws[-1]) + 1
            # The server sends on while we decode, and we take in what it sends between slices.
            following = asyncio.ensure_future(self._read(topic, at, last))
            try:
                for start in range(0, len(raws), _SLICE):
                    await asyncio.sleep(0)
                    batch = [_record(topic, raw) for raw in raws[start : start + _SLICE]]
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
        return _record(topic, found[0]) if found else None

    async def first_since(self, topic: str, moment_ns: int) -> Record | None:
        """The first record stored at or after a moment, if there is one."""
        whole, below = divmod(max(moment_ns, 0), NS)
        text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        found = await self._get(topic, {"start_time": f"{text}.{below:09d}Z", "batch": 1}, 1)
        return _record(topic, found[0]) if found else None

    async def _read(self, topic: str, first: int, last: int) -> list[Raw]:
        count = min(_BATCH, last - first + 1)
        if count < 1:
            return []
        return await self._get(
            topic, {"seq": first, "batch": count, "max_bytes": _BATCH_BYTES}, count
        )

    async def _get(self, topic: str, request: object, count: int) -> list[Raw]:
        subject = f"$JS.API.DIRECT.GET.{encode_name(topic)}"
        raws, status = await self._pulling.read(subject, request, count)
        if status == _NO_RESPONDERS:
            raise TopicNotFoundError(topic)
        if status not in (0, 204, _NO_MESSAGE):
            raise UnavailableError(f"Reading topic {topic!r}: the NATS server answered {status}")
        return raws


# What the server adds to a message it hands out directly, after the message's own headers.
_ADDED = re.compile(
    rb"Nats-Stream: [^\r]*\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d+)\r\n"
    rb"Nats-Time-Stamp: ([^\r.]*)(?:\.(\d+))?Z\r\n"
)
_BARE = len(b"NATS/1.0\r\n")


def _record(topic: str, raw: Raw) -> Record:
    _, _, block, payload = raw
    at = block.rfind(b"\r\nNats-Stream: ") + 2
    added = _ADDED.match(block, at)
    if added is None:
        raise InternalError(f"The NATS server sent a message of topic {topic!r} without its place")
    subject, sequence, whole, digits = added.groups()
    published = _seconds(whole) * NS + int((digits or b"").ljust(9, b"0"))
    own = block[:at] if at > _BARE else b""
    return record_of(topic, subject, own and own + b"\r\n", payload, int(sequence), published)


def _sequence(raw: Raw) -> int:
    return int(raw[2].rpartition(b"Nats-Sequence: ")[2].partition(b"\r")[0])


@lru_cache(maxsize=1024)
def _seconds(text: bytes) -> int:
    """`2026-01-02T03:04:05` in seconds since the epoch. Neighbours share them."""
    return int(datetime.fromisoformat(f"{text.decode()}+00:00").timestamp())
