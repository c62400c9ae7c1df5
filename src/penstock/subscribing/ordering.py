"""Which messages of an ordering key may go to the handler, and which must wait. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.message import Message
from penstock.rules.deadlines import Deadlines
from penstock.rules.lanes import Lanes

# How long the others of a key wait for one that failed to come back. Brokers that need this
# redeliver within milliseconds; a message that was moved to the dead letters never returns.
_RETURNS_WITHIN = 5.0


class Left(NamedTuple):
    """What follows when a message leaves its lane.

    `following`: whose turn it is now. `give_back`: later ones that must come after it again.
    """

    following: Message | None = None
    give_back: Sequence[Message] = ()


class KeyOrder:
    """One message of a key at a time, in order, whatever becomes of it.

    A broker that orders lends one message of a key at a time; what waits here then is at most a
    redelivery. A broker that sends ahead leaves the order to us: when a message fails, its key
    waits for it to come back, at most `returns_within` seconds, because later ones may come first.
    """

    def __init__(self, *, broker_orders: bool, returns_within: float = _RETURNS_WITHIN) -> None:
        self._broker_orders = broker_orders
        self._returns_within = returns_within
        self._lanes: Lanes[Message] = Lanes()
        self._awaited: dict[str, int] = {}
        self._patience: Deadlines[str] = Deadlines()

    @property
    def waiting(self) -> int:
        """How many messages wait behind another of their key."""
        return self._lanes.waiting

    def enter(self, messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
        """Those that may go, and those that wait behind another of their key."""
        going = [message for message in messages if self._enter(message)]
        if len(going) == len(messages):
            return going, []
        return going, list(set(messages).difference(going))

    def take_waiting(self, key: str | None = None) -> list[Message]:
        """Remove what waits behind another, of one key or of all, in order. What goes keeps its
        place."""
        waiting = self._lanes.take_waiting(key) if key is not None else self._lanes.take_all()
        return sorted(waiting, key=_sequence)

    def leave(self, message: Message, failed_at: float | None) -> Left:
        """The message is settled or has expired; when it failed it will come back."""
        key = message.ordering_key
        if key is None or self._lanes.current(key) is not message:
            return Left()
        if failed_at is not None and not self._broker_orders:
            return self._wait_for(message, key, failed_at)
        give_back: Sequence[Message] = ()
        if failed_at is not None:
            give_back = sorted(self._lanes.take_waiting(key), key=_sequence)
        return Left(self._next(key), give_back)

    def _wait_for(self, message: Message, key: str, now: float) -> Left:
        """The key waits until the message is back; it may be here already, behind later ones."""
        sequence = _sequence(message)
        waiting = sorted(self._lanes.take_waiting(key), key=_sequence)
        back = waiting.pop(0) if waiting and _sequence(waiting[0]) <= sequence else None
        if back is not None:
            self._lanes.replace(key, back)
        for later in waiting:
            self._lanes.enter(key, later)
        if back is not None:
            return Left(back)
        self._awaited[key] = sequence
        self._patience.add(now + self._returns_within, [key])
        return Left()

    def next(self) -> float | None:
        """When to ask who has waited long enough."""
        return self._patience.next()

    def stop_awaiting(self, now: float) -> list[Message]:
        """Some have not come back in time: those whose turn it is instead."""
        keys = self._patience.pop_due(now)
        for key in keys:
            del self._awaited[key]
        return [following for key in keys if (following := self._next(key)) is not None]

    def drop(self, held: Callable[[Message], bool]) -> None:
        """Forget what waits and is no longer ours."""
        self._lanes.keep_waiting(held)

    def clear(self) -> list[Message]:
        """Forget everything; returns what waited."""
        self._awaited.clear()
        self._patience.clear()
        return self._lanes.clear()

    def _enter(self, message: Message) -> bool:
        key = message.ordering_key
        if key is None:
            return True
        awaited = self._awaited.get(key)
        if awaited is not None and _sequence(message) <= awaited:
            del self._awaited[key]
            self._patience.discard(key)
            self._lanes.replace(key, message)
            return True
        return self._lanes.enter(key, message)

    def _next(self, key: str) -> Message | None:
        if not self._broker_orders:
            # A redelivery may have come in after later ones.
            for later in sorted(self._lanes.take_waiting(key), key=_sequence):
                self._lanes.enter(key, later)
        return self._lanes.leave(key)


def _sequence(message: Message) -> int:
    return message._delivery.record.sequence
