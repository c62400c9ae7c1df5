"""What is said to the broker when a handler was not simply done: again, or a dead letter."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock.broker import Capabilities, ReleaseCounts
from penstock.clock import Clock
from penstock.consuming.declaration import Subscriber
from penstock.dead_letters.letter import CUT, bare, cut, letter_of_message
from penstock.dead_letters.marks import MARK
from penstock.dead_letters.replaying import REPLAY_FOR
from penstock.errors import InvalidArgumentError, PenstockError
from penstock.message import MAX_ACK_DEADLINE, Draft, Message
from penstock.observing.observer import Observer
from penstock.outcomes import Reject, Retry

GAVE_UP = "gave-up"
UNANSWERED = "unanswered"
# Deliveries beyond `max_attempts` that nobody answered: a handler that ends the whole process, or
# messages that were in hand, unseen, when somebody else's did. After so many it is the former.
_UNANSWERED_AT_MOST = 10

_log = logging.getLogger("penstock.app")

Send = Callable[[str, Draft], Awaitable[object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answering:
    """Answers for the messages of one subscriber. Every failure ends in a nack or a dead letter,
    and a message is acked only once its letter is stored."""

    subscriber: Subscriber
    capabilities: Capabilities
    send: Send
    clock: Clock
    releases: ReleaseCounts | None = None
    observer: Observer | None = None

    def arrived(self, message: Message) -> Awaitable[bool] | bool:
        """Whether it is dealt with, and not for the handler at all; or who finds out."""
        attributes = message.attributes
        if MARK in attributes:  # What was done about letters, written behind them: not a letter.
            message.ack()
            return True
        replay_for = attributes.get(REPLAY_FOR)
        if replay_for is not None and replay_for != self.subscriber.subscription:
            self._log(logging.INFO, message, f"skipped: it is replayed for {replay_for!r}")
            message.ack()
            return True
        limit = self.subscriber.max_attempts
        if limit is not None and message.delivery_attempt > limit + _UNANSWERED_AT_MOST:
            return self._unanswered(message, limit)
        return False

    async def _unanswered(self, message: Message, limit: int) -> bool:
        attempt = await self._attempt(message)
        if attempt <= limit + _UNANSWERED_AT_MOST:
            return False
        why = "delivered again and again, and never answered: does the handler end the process?"
        await self._bury(message, UNANSWERED, why, attempt)
        return True

    def failed(self, message: Message, error: BaseException) -> Awaitable[None] | None:
        """Something was raised, or returned, that is not done. Returns what is left to await."""
        if isinstance(error, Reject):
            self._log(logging.WARNING, message, f"rejected: {error.reason}", error.__cause__)
            return self._bury(message, error.reason, error.__cause__)
        limit = self.subscriber.max_attempts
        if limit is not None and message.delivery_attempt >= limit:
            return self._last(message, error, limit)
        self._again(message, error, message.delivery_attempt)
        return None

    async def _last(self, message: Message, error: BaseException, limit: int) -> None:
        """Its last attempt, unless some of them were nobody's."""
        attempt = await self._attempt(message)
        if attempt < limit:
            self._again(message, error, attempt)
        elif isinstance(error, Retry):
            self._log(logging.ERROR, message, f"given up: {error.reason}", attempt=attempt)
            await self._bury(message, error.reason, error.__cause__, attempt)
        else:
            self._log(logging.ERROR, message, "failed, given up", error, attempt)
            await self._bury(message, GAVE_UP, error, attempt)

    def _again(self, message: Message, error: BaseException, attempt: int) -> None:
        if isinstance(error, Retry):
            self._log(logging.INFO, message, f"to be tried again: {error.reason}", attempt=attempt)
            message.nack(self._delay(message, error.after))
        else:
            self._log(logging.WARNING, message, "failed, to be tried again", error, attempt)
            message.nack(self._delay(message, None))

    async def _attempt(self, message: Message) -> int:
        """Which attempt it is of those that somebody saw; 0 while that cannot be found out."""
        if self.releases is None:
            return message.delivery_attempt
        try:
            return await self.releases.attempt(self.subscriber.subscription, message.ack_id)
        except PenstockError as error:
            self._log(
                logging.WARNING, message, f"goes on: how often it was seen is unknown, {error}"
            )
            return 0

    def _delay(self, message: Message, after: float | None) -> float | None:
        """Seconds until it comes back; None: as the broker's own policy says."""
        retry, can = self.subscriber.retry, self.capabilities
        if not can.delayed_nack:
            return None
        if after is None and not can.retry_policy and retry is not None:
            after = retry.delay(max(message.delivery_attempt, 1))
        return None if after is None else min(max(after, 0.0), MAX_ACK_DEADLINE)

    async def _bury(
        self,
        message: Message,
        reason: str,
        error: BaseException | str | None,
        attempt: int | None = None,
    ) -> None:
        topic = self.subscriber.dead_letters
        if topic is None:
            self._log(logging.ERROR, message, f"dropped ({reason}): there are no dead letters")
            message.reject()
            return
        letter = letter_of_message(
            message,
            topic=self.subscriber.topic,
            subscription=self.subscriber.subscription,
            reason=reason,
            error=error,
            time_ns=self.clock.time_ns(),
            attempt=attempt,
        )
        try:
            await self._store(message, topic, letter)
        except PenstockError as trouble:
            self._log(
                logging.ERROR,
                message,
                f"could not be moved to the dead letters in {topic!r} and stays: {trouble}",
            )
            message.nack(self._delay(message, None))
            return
        message.ack()
        if self.observer is not None:
            self.observer.dead_lettered(topic, self.subscriber.subscription, reason)

    async def _store(self, message: Message, topic: str, letter: Draft) -> None:
        """The whole letter, or as much of it as the broker takes."""
        try:
            await self.send(topic, letter)
        except InvalidArgumentError:
            letter = bare(letter)
            try:
                await self.send(topic, letter)
            except InvalidArgumentError:
                shorter = cut(letter)
                if not shorter.data:  # Too short to be too long: it was refused for another reason.
                    raise
                await self.send(topic, shorter)
                lost = shorter.attributes[CUT]
                self._log(logging.ERROR, message, f"lacks {lost} bytes at its end as a dead letter")

    def _log(
        self,
        level: int,
        message: Message,
        what: str,
        error: BaseException | None = None,
        attempt: int | None = None,
    ) -> None:
        if not _log.isEnabledFor(level):
            return
        of = self.subscriber
        attempt = message.delivery_attempt if attempt is None else attempt
        fields: dict[str, Any] = {
            "topic": of.topic,
            "subscription": of.subscription,
            "message_id": message.id,
            "attempt": attempt,
            "handler": of.name,
        }
        _log.log(
            level,
            "Message %r of %r %s (handler %s, attempt %d%s)",
            message.id,
            of.subscription,
            what,
            of.name,
            attempt,
            f" of {of.max_attempts}" if of.max_attempts is not None else "",
            extra=fields,
            exc_info=error,
        )
