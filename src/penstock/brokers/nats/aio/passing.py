"""Reading long ranges of a stream through a passing consumer, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from penstock.brokers.nats.aio.connection import Connection
from penstock.brokers.nats.aio.pulling import Pulling
from penstock.brokers.nats.protocol.headers import CONFLICT, NO_RESPONDERS, encode_name
from penstock.brokers.nats.protocol.passing import passing_consumer
from penstock.brokers.nats.protocol.records import Raw, delivered_records, parse_ack_subject
from penstock.brokers.nats.protocol.requests import api_subject, next_message, publish_operation
from penstock.errors import TopicNotFoundError, UnavailableError
from penstock.message import Record

_BATCH = 10_000
_BATCH_BYTES = 16 * 2**20
SLICE = 1_000
"""Records that are decoded at a time: in between, the server is listened to."""


class EndedEarlyError(UnavailableError):
    """The consumer is gone, or something of what it sent: what is left has to be read otherwise."""


class PassingReader:
    """One range of one topic."""

    def __init__(self, connection: Connection, pulling: Pulling, topic: str) -> None:
        self._connection = connection
        self._pulling = pulling
        self._topic = topic
        self._stream = encode_name(topic)
        self._received = 0

    async def read(self, first: int, last: int) -> AsyncGenerator[list[Record], None]:
        """What there is from `first` on, in order, at least up to `last`, as far as the server that
        keeps the consumer knows."""
        consumer = await self._create(first)
        following: asyncio.Future[list[Raw]] | None = None
        try:
            raws = await self._fetch(consumer, last - first + 1)
            while raws:
                left = last - parse_ack_subject(raws[-1][1]).sequence
                # The server sends on while we decode.
                following = asyncio.ensure_future(self._fetch(consumer, left))
                for start in range(0, len(raws), SLICE):
                    await asyncio.sleep(0)
                    yield delivered_records(self._topic, raws[start : start + SLICE])
                raws = await following
        finally:
            if following is not None:
                following.cancel()
            self._delete(consumer)

    async def _create(self, first: int) -> str:
        made = await self._connection.request(
            f"CONSUMER.CREATE.{self._stream}",
            passing_consumer(self._stream, first),
            missing=lambda: TopicNotFoundError(self._topic),
        )
        return str(made["name"])

    async def _fetch(self, consumer: str, most: int) -> list[Raw]:
        if most < 1:
            return []
        raws, status = await self._next(consumer, min(most, _BATCH), _BATCH_BYTES)
        if status == CONFLICT and not raws:
            # The next message alone is larger than a batch may be.
            raws, status = await self._next(consumer, 1, 0)
        if status in (CONFLICT, NO_RESPONDERS) and not raws:
            # Because nobody had asked for long, or its server went away.
            raise EndedEarlyError(f"The consumer that read topic {self._topic!r} is gone")
        self._received += len(raws)
        if raws and parse_ack_subject(raws[-1][1]).nth != self._received:
            raise EndedEarlyError(f"Messages of topic {self._topic!r} were lost on their way")
        return raws

    async def _next(self, consumer: str, batch: int, max_bytes: int) -> tuple[list[Raw], int]:
        request: dict[str, object] = {"batch": batch, "no_wait": True}
        if max_bytes:
            request["max_bytes"] = max_bytes
        return await self._pulling.read(next_message(self._stream, consumer), request, batch)

    def _delete(self, consumer: str) -> None:
        """It would end by itself; better now. Nobody waits for the answer."""
        subject = api_subject(f"CONSUMER.DELETE.{self._stream}.{consumer}").encode()
        self._connection.wire.post([publish_operation(subject, b"", b"", b"")])
