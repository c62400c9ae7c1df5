"""Receiving what messages decode to, for handlers of one's own: done, try again, or dead."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeAlias, TypeVar

from msgspec.structs import replace

from penstock.config import RetryPolicy
from penstock.errors import PenstockError
from penstock.jobs.incoming import Incoming, dead_letter
from penstock.jobs.messaging.listening import Listener
from penstock.jobs.messaging.publisher import Publisher
from penstock.jobs.model.codec import InvalidMessageError
from penstock.jobs.pipeline.stage import Done, Outcome, Reject, Retry
from penstock.jobs.telemetry import JobObserver, Subject, subject_of
from penstock.message import MAX_ACK_DEADLINE, Message
from penstock.subscribing import Subscription

_log = logging.getLogger("penstock.jobs")
_PATIENCE = RetryPolicy(minimum_backoff=1.0, maximum_backoff=60.0)
T = TypeVar("T")
Decode: TypeAlias = Callable[[bytes, Mapping[str, str]], T]
Handle: TypeAlias = Callable[[T, int], Awaitable[Outcome]]
"""Takes what was decoded and the delivery attempt."""


class Subscriber(Listener, Generic[T]):
    """Calls a handler with what the messages of one subscription decode to.

    Done is an ack, Retry a nack, Reject a dead letter: published where `dead_letters` says, then
    acked. What cannot be decoded is a dead letter too, at its delivery number `invalid_attempts`,
    or at once where the broker does not count them. A handler that raises has met trouble of ours:
    the message comes back after a while, however often.
    """

    def __init__(
        self,
        subscription: Subscription,
        decode: Decode[T],
        handle: Handle[T],
        observer: JobObserver,
        *,
        name: str,
        publisher: Publisher,
        dead_letters: str,
        invalid_attempts: int = 1,
        drain: float = 10.0,
    ) -> None:
        super().__init__(subscription, self._on_message, name=name, drain=drain)
        self._decode = decode
        self._call = handle
        self._observer = observer
        self._publisher = publisher
        self._dead_letters = dead_letters
        self._invalid_attempts = invalid_attempts

    async def _on_message(self, message: Message) -> None:
        subject = subject_of(message.attributes, message.delivery_attempt)
        self._observer.received(subject, self.subscription.name)
        began = time.monotonic()
        try:
            outcome = await self._outcome(message, subject)
            await self._settle(message, outcome, subject)
        except asyncio.CancelledError:
            self._observer.handled(subject, self._name, "lost", time.monotonic() - began)
            raise
        took = time.monotonic() - began
        about = replace(subject, reason=None if isinstance(outcome, Done) else outcome.reason)
        self._observer.handled(about, self._name, type(outcome).__name__.lower(), took)

    async def _outcome(self, message: Message, subject: Subject) -> Outcome:
        try:
            value = self._decode(message.data, message.attributes)
        except InvalidMessageError as error:
            if 0 < message.delivery_attempt < self._invalid_attempts:
                return Retry(error.reason)
            return Reject(error.reason)
        try:
            return await self._call(value, message.delivery_attempt)
        except (Retry, Reject) as decided:
            return decided
        except Exception as error:
            log_trouble(error, self._name, subject)
            return Retry("trouble")

    async def _settle(self, message: Message, outcome: Outcome, subject: Subject) -> None:
        match outcome:
            case Done():
                message.ack()
            case Retry(_, after):
                await self._give_back(message, after)
            case Reject(reason):
                topic = self._dead_letters
                came = incoming(message, self.subscription)
                letter = dead_letter(came, reason, message.delivery_attempt)
                try:
                    await self._publisher.publish([(topic, letter)])
                except PenstockError as error:
                    _log.warning(
                        "Message %s of %s cannot be kept in topic %r yet and comes again: %s",
                        *(message.id, self._name, topic, error),
                    )
                    await self._give_back(message)
                    return
                message.ack()
                self._observer.dead_lettered(subject, topic, reason)

    async def _give_back(self, message: Message, after: float | None = None) -> None:
        """Let it come again: in so many seconds where the broker can be told, else as the policy
        of its subscription says. Never at once unless asked for, or what is wrong would be tried
        as often as the machine can."""
        can = (await self.subscription.source.broker()).capabilities
        policy: RetryPolicy | None = self.subscription.config_given.get("retry_policy")
        if policy is not None and can.retry_policy and (after is None or not can.delayed_nack):
            message.nack()
            return
        if after is None:
            after = (policy or _PATIENCE).delay(max(1, message.delivery_attempt))
        after = min(MAX_ACK_DEADLINE, max(0.0, after))
        if can.delayed_nack:
            message.nack(after)
            return
        # It waits with us: given back, it would be here again at once.
        await asyncio.sleep(after)
        message.nack()


def incoming(message: Message, subscription: Subscription) -> Incoming:
    return Incoming(
        topic=subscription.topic or "",
        message_id=message.id,
        attributes=message.attributes,
        data=message.data,
        delivery=message.delivery_attempt,
        subscription=subscription.name,
        published=message.publish_time,
    )


def log_trouble(error: Exception, name: str, subject: Subject) -> None:
    """Say why a message comes again although its handler gave no reason."""
    if isinstance(error, PenstockError):
        _log.warning(
            "%s cannot deal with job %s now, it comes again: %s", name, *(subject.job_id, error)
        )
    else:
        _log.error(
            "%s failed on job %s with an error that it should have dealt with; the message comes "
            "again, and so will this until the handler is mended",
            *(name, subject.job_id),
            exc_info=error,
        )
