"""Reading long ranges of a stream through a passing consumer, on a blocking socket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from penstock.brokers.nats.protocol.headers import CONFLICT, NO_RESPONDERS, encode_name
from penstock.brokers.nats.protocol.parsing import DeliveredFrom, DeliveredParser
from penstock.brokers.nats.protocol.passing import passing_consumer
from penstock.brokers.nats.protocol.requests import encode_request, next_message
from penstock.brokers.nats.sync.connection import LazyConnection
from penstock.brokers.nats.sync.direct import BATCH, BATCH_BYTES
from penstock.columns import Columns
from penstock.errors import PenstockError, TopicNotFoundError, UnavailableError


class PassingConsumer:
    """One range of one stream."""

    def __init__(
        self,
        link: LazyConnection,
        topic: str,
        subjects: Sequence[str] = (),
        *,
        headers: bool = False,
    ) -> None:
        self._link = link
        self._topic = topic
        self._stream = encode_name(topic)
        self._subjects = subjects
        self._headers = headers
        self._received = 0

    def read(self, first: int, last: int) -> Iterator[Columns]:
        """What there is of `first` to `last`, both included, in order."""
        at = first
        consumer = self._create(first)
        try:
            while at <= last:
                found = self._fetch(consumer, min(BATCH, last - at + 1))
                if not found:
                    return
                at = found.sequences[-1] + 1
                # It knows no upper end either.
                found, _ = found.cut(last)
                if found:
                    yield found
        finally:
            self._delete(consumer)

    def _create(self, first: int) -> DeliveredFrom:
        with self._link.use() as connection:
            made = connection.request(
                f"CONSUMER.CREATE.{self._stream}",
                passing_consumer(self._stream, first, self._subjects),
                missing=lambda: TopicNotFoundError(self._topic),
            )
        return DeliveredFrom(self._stream, str(made["name"]))

    def _fetch(self, consumer: DeliveredFrom, wanted: int) -> Columns:
        found, status = self._next(consumer, {"batch": wanted, "max_bytes": BATCH_BYTES})
        if status == CONFLICT and not found:
            # The next message alone is larger than a batch may be.
            found, status = self._next(consumer, {"batch": 1})
        if status in (CONFLICT, NO_RESPONDERS) and not found:
            # Because nobody had asked for long, or its server went away.
            raise UnavailableError(f"The consumer that read topic {self._topic!r} is gone")
        return found

    def _next(self, consumer: DeliveredFrom, request: dict[str, Any]) -> tuple[Columns, int]:
        with self._link.use() as connection:
            reply = connection.send(
                next_message(self._stream, consumer.name),
                b"",
                encode_request({**request, "no_wait": True}),
            )
            parser = DeliveredParser(
                self._topic,
                reply,
                connection.control,
                consumer=consumer,
                wanted=int(request["batch"]),
                headers=self._headers,
            )
            status = connection.receive_into(parser)
        self._received += len(parser.columns)
        if parser.last and parser.last != self._received:
            raise UnavailableError(
                f"Topic {self._topic!r}: {self._received} messages came of {parser.last}"
            )
        return parser.columns, status

    def _delete(self, consumer: DeliveredFrom) -> None:
        """It would end by itself; better now, where that does not mean to connect anew."""
        if self._link.is_open:
            with suppress(PenstockError), self._link.use() as connection:
                connection.request(f"CONSUMER.DELETE.{self._stream}.{consumer.name}")
