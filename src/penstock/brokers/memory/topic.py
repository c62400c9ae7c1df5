"""A topic: numbers what is published, drops duplicates, keeps what must stay readable."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence

from penstock.brokers.memory.subscription import SubscriptionState
from penstock.clock import NS
from penstock.config import TopicConfig
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PenstockError,
    UnimplementedError,
)
from penstock.message import Draft, Expect, PublishFault, Receipt, Record
from penstock.rules.subjects import routed_subject
from penstock.rules.wildcards import matches


class RetainedLog:
    """Consecutive records, found by sequence, dropped from the front. Constant cost each."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._records) - self._dropped

    def extend(self, records: Sequence[Record]) -> None:
        self._records.extend(records)

    def first(self) -> Record | None:
        return self._records[self._dropped] if len(self) else None

    def drop_first(self) -> None:
        self._dropped += 1
        # Moving the rest down only when half is dead makes dropping constant on average.
        if self._dropped * 2 > len(self._records):
            del self._records[: self._dropped]
            self._dropped = 0

    def between(self, first: int, last: int) -> list[Record]:
        """The records held of sequences `first` to `last`, both included."""
        oldest = self.first()
        if oldest is None:
            return []
        start = max(0, first - oldest.sequence) + self._dropped
        end = max(0, last - oldest.sequence + 1) + self._dropped
        return self._records[start:end]


class TopicState:
    """What the broker holds of one topic.

    A record is referenced by the subscriptions that still need it and by `retained` while
    retention or a snapshot asks for it; when nobody does, it is gone.
    """

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.subscriptions: list[SubscriptionState] = []
        self.retained = RetainedLog()
        self.last_sequence = 0
        self._snapshots: dict[str, tuple[int, int]] = {}
        self._retention_ns = 0
        self._keeps_log = False
        # Ids of this broker's making must not meet those of callers or of an earlier topic.
        self.tag = secrets.token_hex(4)
        self._last_id = ""
        self._last_of_subject: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._id_expiry: deque[tuple[int, str]] = deque()
        self._unclaimed: list[Record] = []
        self.retention_changed()

    def append(self, drafts: Sequence[Draft], now_ns: int) -> list[Receipt | PublishFault]:
        """Store what is new and as expected, hand it to the subscriptions, answer each draft."""
        answers: list[Receipt | PublishFault] = []
        records: list[Record] = []
        name, routed = self.config.name, self.config.routed_attributes
        for draft in drafts:
            message_id = draft.message_id
            if message_id is not None:
                known = self._known(message_id, now_ns)
                if known is not None:
                    answers.append(Receipt(message_id, known, True))
                    continue
            subject = draft.subject or name
            if routed and not draft.subject:
                subject = routed_subject(name, routed, draft.attributes)
            if draft.expect is not None or draft.ttl is not None or self.config.subjects:
                refusal = self._refusal(draft, subject)
                if refusal is not None:
                    answers.append(PublishFault(refusal))
                    continue
            self.last_sequence = sequence = self.last_sequence + 1
            self._last_of_subject[subject] = sequence
            if message_id is None:
                message_id = f"{self.tag}-{sequence}"
            records.append(
                Record(
                    sequence,
                    message_id,
                    draft.data,
                    draft.attributes,
                    draft.ordering_key,
                    subject,
                    now_ns,
                )
            )
            self._last_id = message_id
            answers.append(Receipt(message_id, sequence))
            if draft.message_id is not None:
                self._remember(message_id, sequence, now_ns)
        if records:
            if self._keeps_log:
                self.retained.extend(records)
                self.trim(now_ns)
            if self.config.work_queue:
                self._unclaimed += [r for r in records if not self._is_wanted(r)]
            for subscription in self.subscriptions:
                subscription.offer(records, now_ns)
        return answers

    def hand_to(self, subscription: SubscriptionState, now_ns: int) -> None:
        """A subscription is new: of a work queue it takes what nobody else does."""
        if self.config.work_queue:
            subscription.first_sequence = 1
            subscription.offer(self._unclaimed, now_ns)
            self._unclaimed = [r for r in self._unclaimed if not subscription.wants(r)]

    def take_back(self, subscription: SubscriptionState) -> None:
        """A subscription goes: what it has not acked of a work queue stays for another."""
        if self.config.work_queue:
            left = [*self._unclaimed, *subscription.unacked()]
            self._unclaimed = sorted(left, key=lambda record: record.sequence)

    def _is_wanted(self, record: Record) -> bool:
        return any(subscription.wants(record) for subscription in self.subscriptions)

    def retention_changed(self) -> None:
        """Subscriptions or snapshots came or went: how long must the log keep records?"""
        seconds = max(
            self.config.message_retention,
            *(s.acked_retention for s in self.subscriptions),
            0.0,
        )
        self._retention_ns = int(seconds * NS)
        self._keeps_log = seconds > 0 or bool(self._snapshots)
        if not self._keeps_log:
            self.retained = RetainedLog()

    def keep_for_snapshot(self, snapshot: str, expires_ns: int) -> int:
        """Keep what is published from now on until then; returns its first sequence."""
        first = self.last_sequence + 1
        self._snapshots[snapshot] = (first, expires_ns)
        self.retention_changed()
        return first

    def drop_snapshot(self, snapshot: str) -> None:
        if self._snapshots.pop(snapshot, None) is not None:
            self.retention_changed()

    def trim(self, now_ns: int) -> None:
        """Drop what neither retention nor a snapshot needs any more."""
        horizon = now_ns - self._retention_ns
        needed = min(
            (first for first, expires_ns in self._snapshots.values() if expires_ns > now_ns),
            default=self.last_sequence + 1,
        )
        while (oldest := self.retained.first()) is not None:
            if oldest.publish_time_ns >= horizon and self._retention_ns:
                break
            if oldest.sequence >= needed:
                break
            self.retained.drop_first()

    def replayable(self, subscription: SubscriptionState, now_ns: int) -> list[Record]:
        """Acked or not, what this subscription may be given again."""
        topics = now_ns - int(self.config.message_retention * NS)
        own = now_ns - int(subscription.acked_retention * NS)
        first = subscription.first_sequence
        return [
            record
            for record in self.retained.between(1, self.last_sequence)
            if record.publish_time_ns > topics
            or (record.publish_time_ns > own and record.sequence >= first)
        ]

    def _known(self, message_id: str, now_ns: int) -> int | None:
        """The sequence of an id seen within the duplicate window."""
        while self._id_expiry and self._id_expiry[0][0] <= now_ns:
            del self._ids[self._id_expiry.popleft()[1]]
        return self._ids.get(message_id)

    def _remember(self, message_id: str, sequence: int, now_ns: int) -> None:
        if self.config.duplicate_window:
            self._ids[message_id] = sequence
            expiry = now_ns + int(self.config.duplicate_window * NS)
            self._id_expiry.append((expiry, message_id))

    def _refusal(self, draft: Draft, subject: str) -> PenstockError | None:
        """Why a draft cannot be stored here, if it cannot."""
        taken = self.config.subjects
        if taken and not any(matches(pattern, subject) for pattern in taken):
            return InvalidArgumentError(
                f"Topic {self.config.name!r} stores {', '.join(taken)}, and not {subject!r}"
            )
        if draft.ttl is not None:
            return UnimplementedError("The memory broker keeps no time to live per message")
        expect = draft.expect or Expect()
        last_of_subject = self._last_of_subject.get(subject, 0)
        for what, expected, actual in (
            ("topic", expect.topic, self.config.name),
            ("last id", expect.last_id, self._last_id),
            ("last sequence", expect.last_sequence, self.last_sequence),
            ("last sequence of its subject", expect.last_subject_sequence, last_of_subject),
        ):
            if expected is not None and expected != actual:
                return FailedPreconditionError(
                    f"Message not stored in topic {self.config.name!r}: expected {what} "
                    f"{expected!r}, it is {actual!r}"
                )
        return None
