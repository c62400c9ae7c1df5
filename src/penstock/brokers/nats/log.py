"""Reading a stream by sequence: long ranges through a passing consumer, and else with batched
Direct Get, which needs none. Streams of others may not allow that: of those each message is asked
for, which takes longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from operator import attrgetter

from penstock.broker import Extent
from penstock.brokers.nats.aio.connection import Connection
from penstock.brokers.nats.aio.passing import SLICE, EndedEarlyError, PassingReader
from penstock.brokers.nats.aio.pulling import Pulling
from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.protocol.configuration import (
    allows_direct,
    extent_of,
    keeps_by_limits,
)
from penstock.brokers.nats.protocol.errors import odd_status
from penstock.brokers.nats.protocol.headers import (
    END_OF_BATCH,
    NO_MESSAGES,
    NO_RESPONDERS,
    encode_name,
)
from penstock.brokers.nats.protocol.passing import WORTH_A_CONSUMER
from penstock.brokers.nats.protocol.records import (
    Raw,
    answered_record,
    direct_record,
    direct_sequence,
    moment_text,
)
from penstock.brokers.nats.protocol.requests import direct_get
from penstock.errors import NotFoundError, PermissionDeniedError
from penstock.message import Record
from penstock.rules.filters import parse_filter

_BATCH = 10_000
_BATCH_BYTES = 16 * 2**20
# Requests for single messages under way at once.
_AT_ONCE = 100


class NatsLog:
    def __init__(self, connection: Connection, catalogue: Catalogue, pulling: Pulling) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._pulling = pulling
        self._indirect: set[str] = set()
        """Topics of others that cannot be read directly."""

    async def extent(self, topic: str) -> Extent:
        return extent_of(await self._catalogue.stream_info(topic))

    async def read(
        self, topic: str, first: int, last: int, filter: str = ""
    ) -> AsyncIterator[Sequence[Record]]:
        matches = parse_filter(filter).matches if filter else None
        async for records in self._records(topic, max(first, 1), last):
            # Nobody who is asked for what follows a sequence knows an upper end.
            batch = records if records[-1].sequence <= last else _until(last, records)
            if matches is not None:
                batch = [record for record in batch if matches(record.attributes)]
            if batch:
                yield batch

    async def first_after(
        self, topic: str, sequence: int, subjects: Sequence[str] = ()
    ) -> Record | None:
        """The first record beyond a sequence, if there is one; on these subjects, if any."""
        place = {"seq": sequence + 1}
        found = [await self._first(topic, place, subject) for subject in subjects or (">",)]
        return min(filter(None, found), key=attrgetter("sequence"), default=None)

    async def first_since(self, topic: str, moment_ns: int) -> Record | None:
        """The first record stored at or after a moment, if there is one."""
        return await self._first(topic, {"start_time": moment_text(moment_ns)}, ">")

    async def _first(self, topic: str, place: Mapping[str, object], subject: str) -> Record | None:
        wanted = {**place, "next_by_subj": subject}
        found = await self._get(topic, {**wanted, "batch": 1}, 1)
        return direct_record(topic, found[0]) if found else await self._on_leader(topic, wanted)

    async def _records(self, topic: str, at: int, last: int) -> AsyncIterator[list[Record]]:
        if last - at + 1 >= WORTH_A_CONSUMER and await self._keeps_by_limits(topic):
            passing = PassingReader(self._connection, self._pulling, topic)
            try:
                async with aclosing(passing.read(at, last)) as found:
                    async for records in found:
                        at = records[-1].sequence + 1
                        yield records
            except (PermissionDeniedError, EndedEarlyError):
                pass  # This user may make no consumers, or its server went away in between.
        # What is left: all of a short range, or what another copy did not know of yet.
        raws = await self._read(topic, at, last)
        if topic in self._indirect:
            async for records in self._one_by_one(topic, at, last):
                yield records
            return
        while at <= last:
            if not raws:
                record = await self._on_leader(topic, {"seq": at, "next_by_subj": ">"})
                if record is None or record.sequence > last:
                    return
                yield [record]
                at = record.sequence + 1
                raws = await self._read(topic, at, last)
                continue
            at = direct_sequence(raws[-1]) + 1
            # The server sends on while we decode, and we take in what it sends between slices.
            following = asyncio.ensure_future(self._read(topic, at, last))
            try:
                for start in range(0, len(raws), SLICE):
                    await asyncio.sleep(0)
                    yield [direct_record(topic, raw) for raw in raws[start : start + SLICE]]
                raws = await following
            finally:
                following.cancel()

    async def _keeps_by_limits(self, topic: str) -> bool:
        try:
            return keeps_by_limits(await self._catalogue.stream_info(topic))
        except PermissionDeniedError:
            return False  # Nobody may say, and then nobody makes a consumer.

    async def _one_by_one(self, topic: str, at: int, last: int) -> AsyncIterator[list[Record]]:
        """Where nobody answers direct reads the leader is asked for each message, some at once."""
        extent = await self.extent(topic)
        at, last = max(at, extent.first), min(last, extent.last)
        while at <= last:
            places = range(at, min(last, at + _AT_ONCE - 1) + 1)
            found = await asyncio.gather(*(self._message(topic, {"seq": n}) for n in places))
            records = [record for record in found if record is not None]
            if records:
                yield records
                at = places.stop
            else:
                # A gap, perhaps a long one.
                place = {"seq": places.stop, "next_by_subj": ">"}
                following = await self._on_leader(topic, place)
                at = last + 1 if following is None else following.sequence

    async def _on_leader(self, topic: str, place: Mapping[str, object]) -> Record | None:
        """The first record from a place on, by the leader's word. Any replica answers other reads,
        and one that is behind knows nothing of the latest messages."""
        try:
            return await self._message(topic, place)
        except PermissionDeniedError:
            if topic in self._indirect:
                raise
            return None  # Then the word of the one who was asked must do.

    async def _message(self, topic: str, place: Mapping[str, object]) -> Record | None:
        try:
            answer = await self._connection.request(f"STREAM.MSG.GET.{encode_name(topic)}", place)
        except NotFoundError:
            await self._catalogue.stream_info(topic)  # It is there: what is missing is the message.
            return None
        return answered_record(topic, answer["message"])

    async def _read(self, topic: str, first: int, last: int) -> list[Raw]:
        count = min(_BATCH, last - first + 1)
        if count < 1:
            return []
        return await self._get(
            topic, {"seq": first, "batch": count, "max_bytes": _BATCH_BYTES}, count
        )

    async def _get(self, topic: str, request: object, count: int) -> list[Raw]:
        if topic in self._indirect:
            return []
        # One more, because a status ends them.
        raws, status = await self._pulling.read(direct_get(encode_name(topic)), request, count + 1)
        # The topic is gone, or takes no such requests; or its servers are choosing a leader.
        if status == NO_RESPONDERS and not allows_direct(await self._catalogue.stream_info(topic)):
            self._indirect.add(topic)
            return []
        if status not in (0, END_OF_BATCH, NO_MESSAGES):
            raise odd_status(f"Reading topic {topic!r}", status)
        return raws


def _until(last: int, records: list[Record]) -> list[Record]:
    return [record for record in records if record.sequence <= last]
