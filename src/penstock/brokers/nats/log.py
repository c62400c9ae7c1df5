"""Reading a stream by sequence, with batched Direct Get: no consumer, nothing to clean up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

from penstock.broker import Extent
from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.headers import (
    ORDERING_KEY,
    attributes_of,
    decode_header,
    encode_name,
)
from penstock.brokers.nats.pulling import Pulling, Raw
from penstock.clock import NS
from penstock.errors import TopicNotFoundError, UnavailableError
from penstock.filters import parse_filter
from penstock.message import Record

_BATCH = 10_000
_BATCH_BYTES = 16 * 2**20
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
        at = max(first, 1)
        while at <= last:
            batch = await self._read(topic, at, min(_BATCH, last - at + 1))
            if not batch:
                return
            at = batch[-1].sequence + 1
            # Direct Get has no upper end: it goes on past gaps.
            wanted = [record for record in batch if record.sequence <= last]
            if matches is not None:
                wanted = [record for record in wanted if matches(record.attributes)]
            if wanted:
                yield wanted

    async def first_after(self, topic: str, sequence: int) -> Record | None:
        """The first record beyond a sequence, if there is one."""
        found = await self._read(topic, sequence + 1, 1)
        return found[0] if found else None

    async def first_since(self, topic: str, moment_ns: int) -> Record | None:
        """The first record stored at or after a moment, if there is one."""
        whole, below = divmod(max(moment_ns, 0), NS)
        text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        found = await self._get(topic, {"start_time": f"{text}.{below:09d}Z", "batch": 1}, 1)
        return found[0] if found else None

    async def _read(self, topic: str, first: int, count: int) -> list[Record]:
        request = {"seq": first, "batch": count, "max_bytes": _BATCH_BYTES}
        return await self._get(topic, request, count)

    async def _get(self, topic: str, request: object, count: int) -> list[Record]:
        subject = f"$JS.API.DIRECT.GET.{encode_name(topic)}"
        raws, status = await self._pulling.read(subject, request, count)
        if status == _NO_RESPONDERS:
            raise TopicNotFoundError(topic)
        if status not in (0, 204, _NO_MESSAGE):
            raise UnavailableError(f"Reading topic {topic!r}: the NATS server answered {status}")
        return [_record(topic, raw) for raw in raws]


def _record(topic: str, raw: Raw) -> Record:
    _, _, block, payload = raw
    headers = decode_header(block)
    sequence = int(headers["Nats-Sequence"])
    return Record(
        sequence,
        headers.get("Nats-Msg-Id") or f"{topic}-{sequence}",
        payload,
        attributes_of(headers),
        headers.get(ORDERING_KEY),
        headers["Nats-Subject"],
        _nanoseconds(headers["Nats-Time-Stamp"]),
    )


def _nanoseconds(stamp: str) -> int:
    """`2026-01-02T03:04:05.123456789Z`, with as many digits as there are."""
    whole, _, digits = stamp.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * NS + int(digits.ljust(9, "0") or 0)
