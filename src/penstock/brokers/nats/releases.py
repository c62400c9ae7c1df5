"""Deliveries that nobody saw: the server counts them as attempts, and here they are counted apart.

What a subscription gives back unseen that has a dead-letter policy, or whose app counts attempts,
is noted in a stream, one message on a subject of its own each time, and taken off the server's
count of what comes again. A stream, because the next attempt may be another process's.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from penstock.brokers.nats.aio.connection import Connection
from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.brokers.nats.protocol.records import parse_ack_subject
from penstock.brokers.nats.protocol.requests import nak
from penstock.clock import NS
from penstock.config import DAY
from penstock.errors import AlreadyExistsError, NotFoundError, PenstockError, PermissionDeniedError

RELEASES = "PENSTOCK-RELEASES"
# A message that is given back more often than this has other troubles.
_MOST = 10_000
# Whoever gets it next must find the note; nobody waits for that to be stored.
_NAK_LATER = nak(0.25)


class Releases:
    """Notes and counts what was given back, for the subscriptions that `follow` names."""

    def __init__(self, connection: Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._followed: set[tuple[str, str]] = set()

    async def prepare(self) -> None:
        """Make the stream that keeps them, unless it is there."""
        with suppress(AlreadyExistsError):
            await self._catalogue.create_stream(
                {
                    "name": RELEASES,
                    "subjects": [f"{RELEASES}.>"],
                    "storage": "file",
                    "max_age": int(7 * DAY * NS),
                    "max_msgs_per_subject": _MOST,
                    "discard": "old",
                }
            )

    async def find(self) -> None:
        """`prepare`, or see that somebody else did who may; `PermissionDeniedError` if neither."""
        try:
            await self.prepare()
        except PermissionDeniedError:
            try:
                await self._connection.request(f"STREAM.INFO.{RELEASES}")
            except NotFoundError as missing:
                raise PermissionDeniedError(
                    f"There is no stream {RELEASES!r}, and this user may not make it"
                ) from missing

    def follow(self, consumer: Consumer) -> None:
        """Note what this subscription gives back."""
        self._followed.add((consumer.stream, consumer.name))

    def giving_back(self, ack_ids: list[bytes]) -> list[tuple[bytes, bytes]]:
        """What to publish, as subjects and payloads, to give these deliveries back."""
        if not self._followed:
            return [(ack_id, b"-NAK") for ack_id in ack_ids]
        return [operation for ack_id in ack_ids for operation in self._noted(ack_id)]

    def _noted(self, ack_id: bytes) -> list[tuple[bytes, bytes]]:
        one = parse_ack_subject(ack_id)
        if (one.stream, one.consumer) not in self._followed:
            return [(ack_id, b"-NAK")]
        subject = f"{RELEASES}.{one.stream}.{one.consumer}.{one.sequence}".encode()
        return [(subject, b""), (ack_id, _NAK_LATER)]

    async def count(self, consumer: Consumer, sequence: int) -> int:
        """How often a message was given back unseen. None that we may know of: never."""
        subject = f"{RELEASES}.{consumer.stream}.{consumer.name}.{sequence}"
        try:
            info: dict[str, Any] = await self._connection.request(
                f"STREAM.INFO.{RELEASES}", {"subjects_filter": subject}
            )
        except (NotFoundError, PermissionDeniedError):
            return 0
        return int((info["state"].get("subjects") or {}).get(subject, 0))

    async def forget(self, consumer: Consumer) -> None:
        """The subscription is gone; another of its name begins anew."""
        self._followed.discard((consumer.stream, consumer.name))
        with suppress(PenstockError):
            await self._connection.request(
                f"STREAM.PURGE.{RELEASES}",
                {"filter": f"{RELEASES}.{consumer.stream}.{consumer.name}.>"},
            )
