"""Dead letters from the server's side: messages that nobody was left to settle.

When a message has been delivered as often as its consumer allows, the server stops delivering it
and says so once, in an advisory. A stream keeps these advisories, so that a subscriber that was
down, or died on the last delivery itself, finds them later and moves the message.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from penstock.brokers.nats.aio.connection import Connection
from penstock.brokers.nats.aio.pulling import Pulling
from penstock.brokers.nats.catalogue import Catalogue
from penstock.brokers.nats.log import NatsLog
from penstock.brokers.nats.protocol.consumers import Consumer, PullLimits
from penstock.brokers.nats.protocol.requests import nak
from penstock.clock import NS
from penstock.config import DAY, SubscriptionConfig
from penstock.errors import AlreadyExistsError, PenstockError
from penstock.message import Record
from penstock.retrying import Failures, Persistence, always, keep_doing
from penstock.rules.backoff import Backoff

ADVISORIES = "PENSTOCK-ADVISORIES"
_KINDS = ("MAX_DELIVERIES", "MSG_TERMINATED")
_WAIT = 30.0
# Servers hold consumers that lend no more advisories than this; those that wait for a letter that
# could not be moved are among them.
_UNSETTLED = 1000
_TRY_AGAIN_AFTER = 10.0
_FOR_EVER = Persistence(backoff=Backoff(initial=0.2, maximum=30.0), worth_it=always)

_log = logging.getLogger("penstock")

Move = Callable[[SubscriptionConfig, Record, int], Awaitable[bool]]
"""Publishes a record to the dead letters of a subscription; False when it could not."""


class _Advisory(msgspec.Struct):
    stream_seq: int
    deliveries: int = 0


_decode = msgspec.json.Decoder(_Advisory).decode


class DeadLetterMover:
    """Moves what the server gave up on, for each subscription with a dead-letter policy."""

    def __init__(
        self,
        connection: Connection,
        catalogue: Catalogue,
        pulling: Pulling,
        log: NatsLog,
        move: Move,
    ) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._pulling = pulling
        self._log = log
        self._to_dead_letters = move
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def prepare(self, consumer: Consumer) -> None:
        """Keep the advisories of a subscription from now on."""
        with suppress(AlreadyExistsError):
            await self._catalogue.create_stream(
                {
                    "name": ADVISORIES,
                    "subjects": [f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.>" for kind in _KINDS],
                    "storage": "file",
                    "max_age": int(7 * DAY * NS),
                    "allow_direct": True,
                }
            )
        name = _name(consumer)
        with suppress(AlreadyExistsError):
            await self._connection.request(
                f"CONSUMER.CREATE.{ADVISORIES}.{name}",
                {
                    "stream_name": ADVISORIES,
                    "action": "create",
                    "config": {
                        "name": name,
                        "durable_name": name,
                        "ack_policy": "explicit",
                        "ack_wait": 30 * NS,
                        "max_ack_pending": -1,
                        "deliver_policy": "new",
                        "filter_subjects": [
                            f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{consumer.stream}.{consumer.name}"
                            for kind in _KINDS
                        ],
                    },
                },
            )

    async def forget(self, consumer: Consumer) -> None:
        """The subscription is gone, or has no dead letters any more."""
        self.leave(consumer)
        try:
            await self._connection.request(f"CONSUMER.DELETE.{ADVISORIES}.{_name(consumer)}")
        except PenstockError as error:
            _log.debug("No advisories to forget for %r: %s", consumer.config.name, error)

    def watch(self, consumer: Consumer) -> None:
        """Look after a subscription for as long as this connection lasts, or until `leave`."""
        key = consumer.key
        if key not in self._tasks or self._tasks[key].done():
            # Owned here: `close` and `leave` end it.
            self._tasks[key] = asyncio.get_running_loop().create_task(self._run(consumer))

    def leave(self, consumer: Consumer) -> None:
        """It is not as it was: whoever receives from it says so again."""
        task = self._tasks.pop(consumer.key, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, consumer: Consumer) -> None:
        limits = PullLimits(unsettled=_UNSETTLED)
        advisories = Consumer(ADVISORIES, _name(consumer), consumer.config, limits=limits)

        async def move() -> None:
            for _, reply, _, payload in await self._pulling.pull(advisories, 100, 2**20, _WAIT):
                answer = await self._answer(consumer, payload)
                await self._pulling.write_acks([(reply, answer)])

        def tell(error: Exception, _: float) -> None:
            level = logging.DEBUG if isinstance(error, PenstockError) else logging.ERROR
            _log.log(level, "Looking for dead letters of %r: %s", consumer.config.name, error)

        await keep_doing(move, Failures(_FOR_EVER), on_failure=tell)

    async def _answer(self, consumer: Consumer, payload: bytes) -> bytes:
        try:
            advisory = _decode(payload)
        except msgspec.MsgspecError:
            return b"+TERM"
        if await self._move(consumer, advisory):
            return b"+ACK"
        _log.warning(
            "A dead letter of %r could not be moved to %r; trying again",
            consumer.config.name,
            consumer.config.dead_letter_policy and consumer.config.dead_letter_policy.topic,
        )
        return nak(_TRY_AGAIN_AFTER)

    async def _move(self, consumer: Consumer, advisory: _Advisory) -> bool:
        record = await self._log.first_after(consumer.config.topic, advisory.stream_seq - 1)
        if record is None or record.sequence != advisory.stream_seq:
            return True  # It is no longer in the topic; there is nothing to move.
        return await self._to_dead_letters(consumer.config, record, advisory.deliveries)


def _name(consumer: Consumer) -> str:
    # Names may hold every separator a consumer may, so the two are told apart by a digest.
    digest = hashlib.sha256(f"{consumer.stream}/{consumer.name}".encode()).hexdigest()
    # Servers hold consumers of this name.
    return f"rescue-{digest[:32]}"
