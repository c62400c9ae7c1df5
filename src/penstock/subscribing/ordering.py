"""Which messages of an ordering key may go to the handler, and which must wait. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.message import Message
from penstock.rules.lanes import Lanes


class Left(NamedTuple):
    """What follows when a message leaves its lane.

    `following`: whose turn it is now. `give_back`: later ones that must come after it again.
    `awaited`: a number for this wait, when the key waits for the message to come back.
    """

    following: Message | None = None
    give_back: Sequence[Message] = ()
    awaited: int | None = None


class KeyOrder:
    """One message of a key at a time, in order, whatever becomes of it.

    A broker that orders lends one message of a key at a time; what waits here then is at most a
    redelivery. A broker that sends ahead leaves the order to us: when a message fails, its key
    waits for it to come back, because later ones may come first.
    """

    def __init__(self, *, broker_orders: bool) -> None:
        self._broker_orders = broker_orders
        self._lanes: Lanes[Message] = Lanes()
        self._awaited: dict[str, tuple[int, int]] = {}
        self._waits = 0
        self._parked: set[Message] = set()

    @property
    def waiting(self) -> int:
        """How many messages wait behind another of their key."""
        return self._lanes.waiting

    def is_parked(self, message: Message) -> bool:
        """It waits here although the broker lent it to us: its lease must be kept."""
        return message in self._parked

    def enter(self, messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
        """Those that may go, and those whose leases must be kept while they wait."""
        going = [message for message in messages if self._enter(message)]
        if self._broker_orders or len(going) == len(messages):
            return going, []
        parked = set(messages).difference(going)
        self._parked |= parked
        return going, list(parked)

    def leave(self, message: Message, *, failed: bool) -> Left:
        """The message is settled or has expired; `failed` means that it will come back."""
        key = message.ordering_key
        if key is None or self._lanes.current(key) is not message:
            return Left()
        if failed and not self._broker_orders:
            return self._wait_for(message, key)
        give_back: Sequence[Message] = ()
        if failed:
            give_back = sorted(self._lanes.take_waiting(key), key=_sequence)
        return Left(self._next(key), give_back)

    def _wait_for(self, message: Message, key: str) -> Left:
        """The key waits until the message is back; it may be here already, behind later ones."""
        sequence = _sequence(message)
        waiting = sorted(self._lanes.take_waiting(key), key=_sequence)
        back = waiting.pop(0) if waiting and _sequence(waiting[0]) <= sequence else None
        if back is not None:
            self._parked.discard(back)
            self._lanes.replace(key, back)
        for later in waiting:
            self._lanes.enter(key, later)
        if back is not None:
            return Left(back)
        self._waits += 1
        self._awaited[key] = (sequence, self._waits)
        return Left(awaited=self._waits)

    def stop_awaiting(self, key: str, wait: int) -> Message | None:
        """It has not come back: whose turn is it instead?"""
        if self._awaited.get(key, (0, 0))[1] != wait:
            return None
        del self._awaited[key]
        return self._next(key)

    def drop(self, held: Callable[[Message], bool]) -> None:
        """Forget what waits and is no longer ours."""
        self._lanes.keep_waiting(held)
        self._parked = {message for message in self._parked if held(message)}

    def clear(self) -> list[Message]:
        """Forget everything; returns what waited."""
        self._awaited.clear()
        self._parked.clear()
        return self._lanes.clear()

    def _enter(self, message: Message) -> bool:
        key = message.ordering_key
        if key is None:
            return True
        awaited = self._awaited.get(key)
        if awaited is not None and _sequence(message) <= awaited[0]:
            del self._awaited[key]
            self._lanes.replace(key, message)
            return True
        return self._lanes.enter(key, message)

    def _next(self, key: str) -> Message | None:
        if not self._broker_orders:
            # A redelivery may have come in after later ones.
            for later in sorted(self._lanes.take_waiting(key), key=_sequence):
                self._lanes.enter(key, later)
        following = self._lanes.leave(key)
        if following is not None:
            self._parked.discard(following)
        return following


def _sequence(message: Message) -> int:
    return message._delivery.record.sequence
