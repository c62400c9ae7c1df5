"""Deliveries on loan: whose an ack id is, until when, and what is in the message."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from penstock.brokers.nats.aio.running import Running
from penstock.brokers.nats.protocol.consumers import Consumer
from penstock.brokers.nats.protocol.records import parse_ack_subject
from penstock.config import SubscriptionConfig
from penstock.message import Delivery, Record, Settlement, Verb
from penstock.rules.deadlines import Deadlines

# An ack id as the server makes them: whose it is, how often delivered, sequences, time, pending.
_ACK_ID = re.compile(
    r"\$JS\.ACK\.(?:[^.\s]+\.[^.\s]+\.)?([^.\s]+\.[^.\s]+)\.\d+\.\d+\.\d+\.\d+\.\d+(?:\.[^\s]*)?"
)

# A server writes down what it lent a moment later: a tenth of a second when it is at leisure, and
# we may hear late of its end, beside the time for which we stand still. And it writes down whole
# seconds.
WRITTEN_AFTER = 3.0
ROUNDED_BY = 1.0

# On Python 3.11 finding a member in its enum takes longer than most of what is done with it.
_ACK = Verb.ACK


class Loans:
    """Open deliveries of a subscription: until when they are ours, and what is in them.

    What was lent before anybody wrote it down, because its subscription did not need it yet, may be
    ours until `unwritten_until`.

    What a server lent or extended in its last moments it does not know when it is started again.
    Then it lends that anew, perhaps to others, and takes the ack of the one for that of the other.
    So what it lent is ours no longer, and the rest until it had been before.
    """

    def __init__(self, config: SubscriptionConfig, *, unwritten_until: float = 0.0) -> None:
        self.ack_deadline = config.ack_deadline
        self._unwritten_until = unwritten_until
        self._unwritten_settled: set[str] = set()
        self._first_written: int | None = None
        self._ends: Deadlines[str] = Deadlines()
        self._records: dict[str, Record] = {}
        self._latest: dict[int, str] = {}
        self.moved: set[str] = set()
        self._lender: str | None = None
        # When, and until when each had been ours before: 0.0, not at all.
        self._lent_last: deque[tuple[float, dict[str, float]]] = deque()
        self._doubted: dict[str, float] = {}

    def begin(self, deliveries: list[Delivery], now: float) -> None:
        """They came together, and are ours for as long as they say."""
        self._forget_expired(now)
        if self._first_written is None and now < self._unwritten_until:
            self._first_written = min(_nth(d.ack_id) for d in deliveries)
        ack_ids = [d.ack_id for d in deliveries]
        self._lent_last.append((now, dict.fromkeys(ack_ids, 0.0)))
        self._ends.add(now + deliveries[0].ack_deadline, ack_ids)
        self._records.update((d.ack_id, d.record) for d in deliveries)
        self._latest.update((d.record.sequence, d.ack_id) for d in deliveries)

    def wrote(self, before: float) -> None:
        """The server has written down what it lent before that moment."""
        while self._lent_last and self._lent_last[0][0] < before:
            self._lent_last.popleft()

    def lost(self, written_before: float) -> None:
        """The connection is gone, and perhaps the server."""
        self.wrote(written_before)
        for _, before in self._lent_last:
            self._doubted = before | self._doubted

    def served_by(self, lender: str) -> None:
        """We are connected, to this one: it names a run of a server that is alone, and nothing one
        that has others to remember what it lent."""
        is_known = self._lender is not None or bool(self._doubted)
        if lender and lender != self._lender and is_known:
            for ack_id in list(self._records):
                ends = self._doubted.get(ack_id, self._ends.due(ack_id)) or 0.0
                self._ends.add(ends - ROUNDED_BY, [ack_id])
        self._lender = lender
        self._doubted.clear()

    def is_open(self, ack_id: str, now: float) -> bool:
        """It is ours to settle: not settled, not over, and it has not come again."""
        ends, record = self._ends.due(ack_id), self._records.get(ack_id)
        if record is None and self._unwritten_until:
            return now < (ends or self._unwritten_until) and self._is_unwritten(ack_id)
        if ends is None or record is None or ends <= now:
            return False
        return self._latest.get(record.sequence) == ack_id

    def _is_unwritten(self, ack_id: str) -> bool:
        """It was lent before the first that is written down, and has not come again since."""
        if ack_id in self._unwritten_settled or not _ACK_ID.fullmatch(ack_id):
            return False
        lent = parse_ack_subject(ack_id.encode())
        before = self._first_written is None or lent.nth < self._first_written
        return before and lent.sequence not in self._latest

    def record(self, ack_id: str) -> Record | None:
        return self._records.get(ack_id)

    def settled(self, settlement: Settlement, now: float) -> None:
        if settlement.verb is Verb.EXTEND and settlement.seconds:
            ack_id = settlement.ack_id
            self._lent_last.append((now, {ack_id: self._ends.due(ack_id) or 0.0}))
            self._ends.add(now + self.ack_deadline, [ack_id])
        else:
            self._ends.discard(settlement.ack_id)
            if self._unwritten_until and settlement.ack_id not in self._records:
                self._unwritten_settled.add(settlement.ack_id)
            self._forget(settlement.ack_id)

    def _forget_expired(self, now: float) -> None:
        for ack_id in self._ends.pop_due(now):
            self._forget(ack_id)

    def _forget(self, ack_id: str) -> None:
        record = self._records.pop(ack_id, None)
        if record is not None and self._latest.get(record.sequence) == ack_id:
            del self._latest[record.sequence]
        self.moved.discard(ack_id)


def _nth(ack_id: str) -> int:
    return parse_ack_subject(ack_id.encode()).nth


def written_before(running: Running) -> float:
    """What a server lent before that moment it knows after it was killed."""
    return running.before(WRITTEN_AFTER)


def needs_loans(config: SubscriptionConfig) -> bool:
    return config.enable_exactly_once_delivery or config.dead_letter_policy is not None


def foreign_ids(consumer: Consumer, settlements: Sequence[Settlement]) -> set[int]:
    """Which of them name no delivery of this consumer. An ack id becomes a subject on the wire, and
    whoever settles may have got it from anywhere."""
    ids = [settlement.ack_id for settlement in settlements]
    joined = "\n".join(ids)
    lent = f"\n$JS.ACK.{consumer.stream}.{consumer.name}."
    plain = joined.split() == ids and f"\n{joined}".count(lent) == len(ids)
    whose = f"{consumer.stream}.{consumer.name}"
    return {
        at
        for at, settlement in enumerate(settlements)
        # Most are acks and need no closer look; the others are read for what they say.
        if not (plain and settlement.verb is _ACK) and not _names(whose, settlement.ack_id)
    }


def _names(whose: str, ack_id: str) -> bool:
    found = _ACK_ID.fullmatch(ack_id)
    return found is not None and found[1] == whose
