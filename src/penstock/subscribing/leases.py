"""Which messages are ours, and until when. Pure: time comes in as an argument."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from penstock.config import check_duration
from penstock.errors import InvalidArgumentError
from penstock.message import Message, Settlement, Verb
from penstock.rules.deadlines import Deadlines


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseExtension:
    """Keep messages ours while their handlers work.

    Every `interval` seconds, give or take `jitter` of it and in any case before half the ack
    deadline has passed, a message that is not settled gets a new ack deadline, until `max_total`
    seconds after it was handed over. Extending ends at once when the message is settled or its
    async handler returns, raises or is cancelled.
    """

    interval: float = 20.0
    jitter: float = 0.1
    max_total: float = 3600.0

    def __post_init__(self) -> None:
        check_duration("interval", self.interval, 0.01, 600)
        check_duration("max_total", self.max_total, self.interval, 7 * 86_400)
        jitter = self.jitter
        is_number = isinstance(jitter, int | float) and not isinstance(jitter, bool)
        if not is_number or not 0 <= jitter < 1:
            raise InvalidArgumentError(f"jitter must be a number from 0 to under 1, not {jitter!r}")

    def pause(self, ack_deadline: float, chance: Callable[[], float] = random.random) -> float:
        """Seconds until the next extension: in time for a lease of `ack_deadline`."""
        spread = 1 + self.jitter * (2 * chance() - 1)
        return min(self.interval * spread, ack_deadline / 2)


# How leases are kept of messages that wait for their handler: long enough for any handler before
# them, and not for ever, because others could have them.
_WHILE_PARKED = LeaseExtension(interval=600.0, jitter=0.0, max_total=3600.0)
# A handler is not told of a deadline that is shorter by less than this, to spare the broker.
_NEARLY = 0.9

_ack_id = attrgetter("_delivery.ack_id")


class LeaseBook:
    """The messages on loan to us by ack id, when each loan ends, and when to renew it.

    Whatever has to be said to the broker is returned, to be sent by whoever asked.
    """

    def __init__(self) -> None:
        self.ack_deadline = 60.0
        """Seconds a message is ours."""
        self._wanted: float | None = None
        self._granted = 60.0
        self._broker_sets_deadlines = True
        self._extension: LeaseExtension | None = None
        self._messages: dict[str, Message] = {}
        self._expiry: Deadlines[str] = Deadlines()
        # Loans that have begun since anybody asked when one ends, and when they do: those that a
        # handler settles at once never need a place among the deadlines.
        self._begun: list[tuple[float, list[str]]] = []
        self._renewal: Deadlines[str] = Deadlines()
        # Why a loan is renewed: it is extended or parked since then, or promised until then.
        self._extended_since: dict[str, float] = {}
        self.parked: set[str] = set()
        self._promised_until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, message: Message) -> bool:
        return message._delivery.ack_id in self._messages

    def __iter__(self) -> Iterator[Message]:
        return iter(list(self._messages.values()))

    def known(self, ack_ids: Iterable[str]) -> set[str]:
        """Which of these are on loan to us."""
        return self._messages.keys() & ack_ids

    def configure(self, ack_deadline: float | None, extension: LeaseExtension | None) -> None:
        """For loans that begin or are renewed from now on; None: as long as the broker grants,
        and no extension."""
        self._wanted = ack_deadline
        self._extension = extension
        self.ack_deadline = ack_deadline or self._granted

    def learn(self, *, broker_sets_deadlines: bool) -> None:
        """A broker that does not set them renews a loan for as long as it granted it at first."""
        self._broker_sets_deadlines = broker_sets_deadlines

    # Loans begin, change and end.

    def begin(self, messages: Sequence[Message], granted: float, now: float) -> list[Settlement]:
        """These are ours, for as long as we want or else as the broker granted."""
        self._granted = granted
        wanted = self.ack_deadline = self._wanted or granted
        ack_ids = [*map(_ack_id, messages)]
        self._messages.update(zip(ack_ids, messages, strict=True))
        self._begun.append((now + wanted, ack_ids))
        if self._extension is not None:
            self._extended_since.update(dict.fromkeys(ack_ids, now))
            self._renewal.add(now + self._extension.pause(wanted), ack_ids)
        if wanted == granted:
            return []
        self._promise(ack_ids, now, now + wanted)
        return [Settlement(ack_id, Verb.EXTEND, wanted) for ack_id in ack_ids]

    def prolong(self, ack_id: str, seconds: float, now: float) -> Settlement:
        """Ours until `seconds` from now instead, if it is ours."""
        if ack_id in self._messages:
            self._date()
            self._expiry.add(now + seconds, [ack_id])
            self._promise([ack_id], now, now + seconds)
        return Settlement(ack_id, Verb.EXTEND, seconds)

    def park(self, messages: Iterable[Message], now: float) -> None:
        """They wait for a handler to see them: keep them until `start`."""
        ack_ids = [m.ack_id for m in messages if m.ack_id not in self.parked]
        if ack_ids:
            self.parked.update(ack_ids)
            self._extended_since.update(dict.fromkeys(ack_ids, now))
            self._renewal.add(now + self.ack_deadline / 2, ack_ids)

    def start(self, message: Message, now: float) -> list[Settlement]:
        """A handler sees it now: it has its time from here on, however long it was parked."""
        ack_id = message.ack_id
        self.parked.discard(ack_id)
        self._extended_since[ack_id] = now
        self._date()
        ends = self._expiry.due(ack_id)
        if ends is None or ends - now > _NEARLY * self.ack_deadline:
            return []
        return [self.prolong(ack_id, self.ack_deadline, now)]

    def stop_extending(self, message: Message) -> None:
        """Its handler has ended: it gets no more time than it was promised."""
        if not self._extended_since:
            return
        ack_id = message.ack_id
        if self._extended_since.pop(ack_id, None) is not None:
            self.parked.discard(ack_id)
            if ack_id not in self._promised_until:
                self._renewal.discard(ack_id)

    def end(self, ack_id: str) -> Message | None:
        """No longer ours: settled. None when the loan had ended before."""
        message = self._messages.pop(ack_id, None)
        if message is not None:
            self._expiry.discard(ack_id)
            if self._extended_since or self._promised_until:
                self._stop_renewing(ack_id)
        return message

    def clear(self) -> None:
        self._messages.clear()
        self._begun.clear()
        self._expiry.clear()
        self._renewal.clear()
        self._extended_since.clear()
        self.parked.clear()
        self._promised_until.clear()

    # Time passes.

    def next(self) -> float | None:
        """When to look again for expired loans or due renewals."""
        self._date()
        expiry, renewal = self._expiry.next(), self._renewal.next()
        if expiry is None or renewal is None:
            return renewal if expiry is None else expiry
        return min(expiry, renewal)

    def pop_expired(self, now: float) -> list[Message]:
        """Loans that have ended unsettled. Ask for `renewals` first."""
        self._date()
        expired = []
        for ack_id in self._expiry.pop_due(now):
            expired.append(self._messages.pop(ack_id))
            self._stop_renewing(ack_id)
        return expired

    def renewals(self, now: float) -> tuple[list[Settlement], list[Message]]:
        """What to tell the broker before loans end that are to be kept; and the messages that
        have waited for too long, to be given back before they end."""
        self._date()
        told, overdue = [], []
        for ack_id in self._renewal.pop_due(now):
            until = self._promised_until.get(ack_id, 0.0)
            if until > now:
                told.append(Settlement(ack_id, Verb.EXTEND, self._granted))
                self._renewal.add(min(now + self._granted / 2, until), [ack_id])
            elif (extension := self._extension_of(ack_id, now)) is not None:
                ends = now + self.ack_deadline
                if (self._expiry.due(ack_id) or 0.0) < ends:
                    told.append(Settlement(ack_id, Verb.EXTEND, self.ack_deadline))
                    self._expiry.add(ends, [ack_id])
                self._renewal.add(now + extension.pause(self.ack_deadline), [ack_id])
                self._promise([ack_id], now, ends)
            else:
                if ack_id in self.parked:
                    overdue.append(self._messages[ack_id])
                self._stop_renewing(ack_id)
        return told, overdue

    def _date(self) -> None:
        """Note when loans end that have begun and are not over."""
        for ends, ack_ids in self._begun:
            left = [*filter(self._messages.__contains__, ack_ids)]
            if left:
                self._expiry.add(ends, left)
        self._begun.clear()

    def _extension_of(self, ack_id: str, now: float) -> LeaseExtension | None:
        since = self._extended_since.get(ack_id)
        extension = _WHILE_PARKED if ack_id in self.parked else self._extension
        if since is None or extension is None or now - since >= extension.max_total:
            return None
        return extension

    def _promise(self, ack_ids: list[str], now: float, until: float) -> None:
        """Have loans renewed until then, where the broker grants no longer ones."""
        if not self._broker_sets_deadlines and until - now > self._granted:
            self._promised_until.update(dict.fromkeys(ack_ids, until))
            self._renewal.add(now + self._granted / 2, ack_ids)

    def _stop_renewing(self, ack_id: str) -> None:
        self._renewal.discard(ack_id)
        self._extended_since.pop(ack_id, None)
        self._promised_until.pop(ack_id, None)
        self.parked.discard(ack_id)
