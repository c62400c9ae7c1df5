"""Which messages are ours, and until when. Pure: time comes in as an argument."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.config import check_duration
from penstock.errors import InvalidArgumentError
from penstock.message import Message
from penstock.rules.deadlines import Deadlines


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseExtension:
    """Keep messages ours while their handlers work.

    Every `interval` seconds, give or take `jitter` of it and in any case before half the ack
    deadline has passed, a message that is not settled gets a new ack deadline, until `max_total`
    seconds after it was received. Extending ends at once when the message is settled or its async
    handler returns, raises or is cancelled.
    """

    interval: float = 20.0
    jitter: float = 0.1
    max_total: float = 3600.0

    def __post_init__(self) -> None:
        check_duration("interval", self.interval, 0.01, 600)
        check_duration("max_total", self.max_total, self.interval, 7 * 86_400)
        if not 0 <= self.jitter < 1:
            raise InvalidArgumentError(f"jitter must be at least 0 and under 1, not {self.jitter}")

    def pause(self, ack_deadline: float, chance: Callable[[], float] = random.random) -> float:
        """Seconds until the next extension: in time for a lease of `ack_deadline`."""
        spread = 1 + self.jitter * (2 * chance() - 1)
        return min(self.interval * spread, ack_deadline / 2)


class LeaseBook:
    """The messages on loan to us by ack id, when each loan ends, and when to renew it."""

    def __init__(self) -> None:
        self._messages: dict[str, Message] = {}
        self._expiry: Deadlines[str] = Deadlines()
        self._renewal: Deadlines[str] = Deadlines()
        self._renewed_since: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, message: Message) -> bool:
        return message.ack_id in self._messages

    def __iter__(self) -> Iterator[Message]:
        return iter(list(self._messages.values()))

    def begin(self, messages: Sequence[Message], ends: float) -> None:
        """These are ours until `ends`."""
        ack_ids = [message.ack_id for message in messages]
        self._messages.update(zip(ack_ids, messages, strict=True))
        self._expiry.add(ends, ack_ids)

    def end(self, ack_id: str) -> Message | None:
        """No longer ours: settled. None when the loan had ended before."""
        message = self._messages.pop(ack_id, None)
        if message is not None:
            self._expiry.discard(ack_id)
            if self._renewed_since:
                self.stop_renewing(ack_id)
        return message

    def ends(self, ack_id: str) -> float | None:
        """When a loan ends; None when it has."""
        return self._expiry.due(ack_id)

    def prolong(self, ack_ids: Sequence[str], ends: float) -> None:
        """Ours until `ends` instead."""
        self._expiry.add(ends, [ack_id for ack_id in ack_ids if ack_id in self._messages])

    def renew(self, messages: Sequence[Message], since: float, at: float) -> None:
        """Due for renewal at `at`; `since` is when renewing them began."""
        if not messages:
            return
        ack_ids = [message.ack_id for message in messages]
        self._renewed_since.update(dict.fromkeys(ack_ids, since))
        self._renewal.add(at, ack_ids)

    def stop_renewing(self, ack_id: str) -> None:
        if self._renewed_since.pop(ack_id, None) is not None:
            self._renewal.discard(ack_id)

    def next(self) -> float | None:
        """When to look again for expired loans or due renewals."""
        times = [t for t in (self._expiry.next(), self._renewal.next()) if t is not None]
        return min(times, default=None)

    def pop_expired(self, now: float) -> list[Message]:
        """Loans that have ended unsettled."""
        expired = []
        for ack_id in self._expiry.pop_due(now):
            expired.append(self._messages.pop(ack_id))
            self.stop_renewing(ack_id)
        return expired

    def pop_renewals(self, now: float, max_total: float) -> list[tuple[Message, float]]:
        """Loans to renew now, with when renewing them began; those renewed for `max_total`
        seconds are left to expire."""
        due = []
        for ack_id in self._renewal.pop_due(now):
            since = self._renewed_since.pop(ack_id)
            if now - since < max_total:
                due.append((self._messages[ack_id], since))
        return due

    def clear(self) -> None:
        self._messages.clear()
        self._expiry.clear()
        self._renewal.clear()
        self._renewed_since.clear()
