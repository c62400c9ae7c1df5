"""A subscription: what is available, on loan, waiting for a retry, or behind its ordering key."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from penstock.broker import SubscriptionStatus, Unsettled
from penstock.brokers.memory.waiting import Waiters
from penstock.clock import NS, Alarm, Clock
from penstock.config import SubscriptionConfig
from penstock.errors import (
    FailedPreconditionError,
    PenstockError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from penstock.message import AckResponse, Delivery, Record, Settlement, Verb
from penstock.rules.deadlines import Deadlines
from penstock.rules.filters import parse_filter
from penstock.rules.lanes import Lanes
from penstock.rules.wildcards import matches


class Loan(Struct, eq=False):
    """A record that has been handed out at least once."""

    record: Record
    attempt: int


# On Python 3.11 finding a member in its enum takes longer than most of what is done with it.
_ACK, _EXTEND = Verb.ACK, Verb.EXTEND


class SubscriptionState:
    """What the broker holds of one subscription. Every operation costs the same whatever the
    backlog; one heap and one timer serve all its deadlines.

    A record is in exactly one place: `_fresh` (never delivered), `_again` (to be redelivered),
    `_loans` (on loan, by ack id), `_delayed` (waiting for its retry, by its last ack id), or
    behind another of its key in `_lanes`. Once acked it is in none.
    """

    def __init__(
        self,
        config: SubscriptionConfig,
        clock: Clock,
        ack_ids: Iterator[int],
        dead_letter: Callable[[SubscriptionConfig, Record, int], bool],
    ) -> None:
        self.config = config
        self.first_sequence = 1
        """Of the first message published after it was created."""
        self._retention_ns = int(config.message_retention * NS)
        self._clock = clock
        self._ack_ids = ack_ids
        self._dead_letter = dead_letter
        self._matches = _matching(config)
        self._refiltered = False
        self._fresh: deque[Record] = deque()
        self._again: deque[Loan] = deque()
        self._again_next = True
        self._loans: dict[str, Loan] = {}
        self._delayed: dict[str, Loan] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self._lanes: Lanes[Record] | None = Lanes() if config.message_ordering else None
        self._waiters = Waiters()
        self._alarm = Alarm(clock, self._on_alarm)
        self._ignore_before_ns = 0
        self._topic_deleted = False
        self._detached = False
        self._gone: PenstockError | None = None
        self._idle = Alarm(clock, self._on_idle)
        self._used_at = clock.monotonic()
        self._expire: Callable[[SubscriptionState], object] = lambda _: None

    @property
    def acked_retention(self) -> float:
        """Seconds for which acked messages stay replayable to this subscription."""
        return self.config.message_retention if self.config.retain_acked_messages else 0.0

    # Records arrive.

    def offer(self, records: Sequence[Record], now_ns: int) -> None:
        """Take in what the topic published."""
        if self._fresh and self._fresh[0].publish_time_ns < now_ns - self._retention_ns:
            self._drop_expired(now_ns)
        if self._ignore_before_ns:
            records = [r for r in records if r.publish_time_ns >= self._ignore_before_ns]
        if self._matches is not None or self.config.subjects:
            records = [r for r in records if self.wants(r)]
        if self._lanes is not None:
            enter = self._lanes.enter
            records = [r for r in records if r.ordering_key is None or enter(r.ordering_key, r)]
        self._fresh.extend(records)
        self._waiters.wake(len(records))

    def wants(self, record: Record) -> bool:
        """Its filter and its subjects let the record through."""
        subjects = self.config.subjects
        if subjects and not any(matches(pattern, record.subject) for pattern in subjects):
            return False
        return self._matches is None or self._matches(record.attributes)

    # Records go out on loan.

    async def pull(self, max_messages: int, max_bytes: int, wait: float) -> list[Delivery]:
        self._used_at = self._clock.monotonic()
        until = self._used_at + wait
        while True:
            self.check_usable()
            taken = self._take(max_messages, max_bytes)
            if taken:
                return taken
            if self._topic_deleted and not self._unsettled():
                raise TopicNotFoundError(
                    self.config.topic,
                    f"it was deleted and subscription {self.config.name!r} has nothing left; "
                    "delete the subscription, or create it again on another topic",
                )
            remaining = until - self._clock.monotonic()
            if remaining <= 0:
                return []
            try:
                await self._waiters.news(remaining)
            finally:
                self._used_at = self._clock.monotonic()

    def _take(self, max_messages: int, max_bytes: int) -> list[Delivery]:
        if not self._fresh and not self._again:
            return []
        fresh, again, loans = self._fresh, self._again, self._loans
        deadline = self.config.ack_deadline
        horizon = self._clock.time_ns() - self._retention_ns
        ack_ids = self._ack_ids
        taken: list[Delivery] = []
        granted: list[str] = []
        left = max_bytes
        while len(granted) < max_messages:
            # Redeliveries come first but take turns with fresh messages, so that a message
            # which is nacked for ever does not starve the rest.
            redelivery = bool(again and (self._again_next or not fresh))
            if redelivery:
                loan = again.popleft()
            elif fresh:
                loan = Loan(fresh.popleft(), 1)
            else:
                break
            record = loan.record
            size = record.size if record.attributes else len(record.data)
            if size > left and granted:
                if redelivery:
                    again.appendleft(loan)
                else:
                    fresh.appendleft(record)
                break
            self._again_next = not redelivery
            if record.publish_time_ns < horizon or (self._refiltered and not self.wants(record)):
                self._finish(record)
                continue
            left -= size
            ack_id = str(next(ack_ids))
            loans[ack_id] = loan
            granted.append(ack_id)
            taken.append(Delivery(record, ack_id, loan.attempt, deadline))
        if granted:
            self._set_deadline(deadline, granted)
        return taken

    # Loans end.

    def settle(self, settlements: Sequence[Settlement]) -> list[AckResponse]:
        stale = (
            AckResponse.INVALID if self.config.enable_exactly_once_delivery else AckResponse.SUCCESS
        )
        success = AckResponse.SUCCESS
        loans, deadlines = self._loans, self._deadlines
        responses: list[AckResponse] = []
        extended: list[tuple[float, list[str]]] = []
        self._used_at = self._clock.monotonic()
        for settlement in settlements:
            ack_id, verb = settlement.ack_id, settlement.verb
            if verb is _EXTEND and settlement.seconds:
                if ack_id in loans:
                    if not extended or extended[-1][0] != settlement.seconds:
                        extended.append((settlement.seconds, []))
                    extended[-1][1].append(ack_id)
                    responses.append(success)
                else:
                    responses.append(stale)
                continue
            loan = loans.pop(ack_id, None)
            if loan is None:
                responses.append(stale)
                continue
            deadlines.discard(ack_id)
            responses.append(success)
            if verb is _ACK:
                self._finish(loan.record)
            elif verb is Verb.REJECT:
                self._give_up(ack_id, loan)
            elif verb is Verb.RELEASE:
                self._again.append(loan)
                self._waiters.wake(1)
            else:
                self._bring_back(ack_id, loan, settlement.seconds)
        for seconds, ack_ids in extended:
            self._set_deadline(seconds, [ack_id for ack_id in ack_ids if ack_id in loans])
        if self._topic_deleted:
            self._waiters.wake_all()
        return responses

    def _finish(self, record: Record) -> None:
        """Acked: whoever waited behind it is next."""
        if self._lanes is not None and record.ordering_key is not None:
            following = self._lanes.leave(record.ordering_key)
            if following is not None:
                self._fresh.append(following)
                self._waiters.wake(1)

    def _give_up(self, ack_id: str, loan: Loan) -> None:
        """Rejected: to the dead letters if there are any, else dropped."""
        policy = self.config.dead_letter_policy
        if policy is None or self._dead_letter(self.config, loan.record, loan.attempt):
            self._finish(loan.record)
        else:
            self._bring_back(ack_id, loan, None)

    def _bring_back(self, ack_id: str, loan: Loan, delay: float | None) -> None:
        """Nacked or expired: dead letter after the last attempt, else once more, later or now."""
        policy = self.config.dead_letter_policy
        spent = policy is not None and loan.attempt >= policy.max_delivery_attempts
        if spent and self._dead_letter(self.config, loan.record, loan.attempt):
            self._finish(loan.record)
            return
        if delay is None and self.config.retry_policy is not None:
            delay = self.config.retry_policy.delay(loan.attempt)
        loan.attempt += 1
        if delay:
            self._delayed[ack_id] = loan
            self._set_deadline(delay, [ack_id])
        else:
            self._again.append(loan)
            self._waiters.wake(1)

    # Time passes.

    def _set_deadline(self, seconds: float, ack_ids: list[str]) -> None:
        self._deadlines.add(self._clock.monotonic() + seconds, ack_ids)
        self._alarm.set(self._deadlines.next())

    def _on_alarm(self) -> float | None:
        for ack_id in self._deadlines.pop_due(self._clock.monotonic()):
            loan = self._loans.pop(ack_id, None)
            if loan is not None:
                self._bring_back(ack_id, loan, None)
            else:
                self._again.append(self._delayed.pop(ack_id))
                self._waiters.wake(1)
        if self._topic_deleted:
            self._waiters.wake_all()
        return self._deadlines.next()

    # Operators look and change.

    def unacked(self) -> list[Record]:
        """Everything not yet acked, in order of publication."""
        return sorted(self._records(), key=lambda record: record.sequence)

    def reconfigure(self, config: SubscriptionConfig) -> None:
        """What is delivered from now on follows `config`."""
        matches = _matching(config)
        self._refiltered |= config.filter != self.config.filter
        self._matches = matches
        self.config = config
        if self._refiltered:
            self._drop_unwanted()
        self._retention_ns = int(config.message_retention * NS)
        self._used_at = self._clock.monotonic()
        self.expire_with(self._expire)

    def expire_with(self, expire: Callable[[SubscriptionState], object]) -> None:
        """Call `expire` once nobody has used this subscription for as long as it may be idle."""
        self._expire = expire
        self._idle.cancel()
        if self.config.expires_after is not None:
            self._idle.set(self._used_at + self.config.expires_after)

    def _on_idle(self) -> float | None:
        now, ttl = self._clock.monotonic(), self.config.expires_after or 0.0
        if len(self._waiters):
            self._used_at = now
        if now < self._used_at + ttl:
            return self._used_at + ttl
        self._expire(self)
        return None

    def detach(self) -> None:
        """Nothing comes in any more, and what is here is dropped."""
        self.restart_with([])
        self._detached = True
        self._gone = FailedPreconditionError(
            f"Subscription {self.config.name!r} is detached from its topic: it receives nothing "
            "any more; delete it, or create another"
        )
        self._waiters.wake_all()

    def check_usable(self) -> None:
        if self._gone is not None:
            raise self._gone

    def restart_with(self, records: Iterable[Record], ignore_before_ns: int = 0) -> None:
        """Seek: exactly these are unacked now, as if never delivered. Open loans end."""
        self._fresh.clear()
        self._again.clear()
        self._loans.clear()
        self._delayed.clear()
        self._deadlines.clear()
        if self._lanes is not None:
            self._lanes = Lanes()
        self._ignore_before_ns = 0
        self.offer(list(records), self._clock.time_ns())
        self._ignore_before_ns = ignore_before_ns
        if self._topic_deleted:
            self._waiters.wake_all()

    def status(self) -> SubscriptionStatus:
        self._drop_expired(self._clock.time_ns())
        oldest = min((r.publish_time_ns for r in self._oldest_records()), default=None)
        age = 0.0 if oldest is None else max(0.0, (self._clock.time_ns() - oldest) / NS)
        return SubscriptionStatus(
            config=self.config,
            unsettled=Unsettled(
                messages=self._unsettled(), leased=len(self._loans), oldest_age=age
            ),
            topic_deleted=self._topic_deleted,
            detached=self._detached,
        )

    def _drop_expired(self, now_ns: int) -> None:
        """Let go of what nobody came for in time, oldest first."""
        fresh, horizon = self._fresh, now_ns - self._retention_ns
        while fresh and fresh[0].publish_time_ns < horizon:
            self._finish(fresh.popleft())

    def _drop_unwanted(self) -> None:
        """Let go of what its filter no longer lets through; what is elsewhere goes when its turn
        comes."""
        for _ in range(len(self._fresh)):
            record = self._fresh.popleft()
            if self.wants(record):
                self._fresh.append(record)
            else:
                self._finish(record)

    def topic_deleted(self) -> None:
        self._topic_deleted = True
        self._waiters.wake_all()

    def end(self, reason: PenstockError | None = None) -> None:
        """The subscription is deleted or the broker closed: nobody waits any longer."""
        self._gone = reason or SubscriptionNotFoundError(
            self.config.name, "it was deleted; create it again to go on"
        )
        self._alarm.cancel()
        self._idle.cancel()
        self._waiters.wake_all()

    def _records(self) -> Iterator[Record]:
        yield from self._fresh
        for loans in (self._again, self._loans.values(), self._delayed.values()):
            for loan in loans:
                yield loan.record
        if self._lanes is not None:
            yield from self._lanes.items_waiting()

    def _oldest_records(self) -> Iterator[Record]:
        """Enough records to find the oldest: `_fresh` is in order unless lanes refill it."""
        if self._lanes is not None:
            yield from self._records()
            return
        if self._fresh:
            yield self._fresh[0]
        for loans in (self._again, self._loans.values(), self._delayed.values()):
            for loan in loans:
                yield loan.record

    def _unsettled(self) -> int:
        parked = self._lanes.waiting if self._lanes is not None else 0
        held = len(self._again) + len(self._loans) + len(self._delayed)
        return len(self._fresh) + held + parked


def _matching(config: SubscriptionConfig) -> Callable[[Mapping[str, str]], bool] | None:
    return parse_filter(config.filter).matches if config.filter else None
