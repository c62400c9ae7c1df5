"""Which messages of an ordered subscription may be lent. Pure.

JetStream sends a key's messages ahead and brings back what failed when its time has come. So what
is unsettled is written down here, wherever it is, and of each key only the earliest is lent.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

from penstock.message import Delivery, Record


class Ours(NamedTuple):
    """Sequences that are unsettled with us, and that will come back to us, at a moment."""

    unsettled: set[int]
    returning: set[int]

    def still(self, now: Ours) -> tuple[int, int]:
        """How many of each are so at both moments."""
        return len(self.unsettled & now.unsettled), len(self.returning & now.returning)


class KeyBook:
    """Unsettled messages by key: here, lent, or away, and then their key waits for them.

    Away is what we gave back (`returning`) and what may be with somebody else (`suspects`).
    """

    def __init__(self) -> None:
        self._open: dict[str, list[int]] = {}
        self._keys: dict[int, str] = {}
        self._held: dict[int, Delivery] = {}
        self._ready: dict[int, Delivery] = {}
        self._turns: dict[str, int] = {}
        self._lent: set[int] = set()
        self._settling: set[int] = set()
        self.returning: dict[int, float] = {}
        """What will come again, and from when on."""
        self.out_of_the_way: dict[int, str] = {}
        """Ack ids of those that are away for a while only to make room here."""
        self.suspects: set[int] = set()
        self.halted = False
        """No key's turn comes: who may go is being found out."""

    @property
    def here(self) -> int:
        """Deliveries that wait to be taken, or for their turn."""
        return len(self._held) + len(self._ready)

    @property
    def size(self) -> int:
        """Bytes of those."""
        return sum(d.record.size for here in (self._held, self._ready) for d in here.values())

    @property
    def lent(self) -> int:
        return len(self._lent)

    def ours(self) -> Ours:
        """What the server cannot but count as unsettled, and nobody else has; and, beside it, what
        will come back."""
        unsettled = {*self._held, *self._ready, *(self._lent - self._settling)}
        return Ours(unsettled, {*self.returning})

    @property
    def ready(self) -> int:
        """Deliveries that may be taken now."""
        return len(self._ready)

    @property
    def waits(self) -> bool:
        """Some key may be waiting for a message that is away."""
        return self.halted or bool(self.returning or self.suspects)

    @property
    def away(self) -> tuple[bool, int, int]:
        """What keys may be waiting for, as far as it can be told from another such moment."""
        return self.halted, len(self.returning), len(self.suspects)

    def knows(self, sequence: int) -> bool:
        return sequence in self._keys or sequence in self._lent or sequence in self._ready

    def arrive(self, delivery: Delivery) -> None:
        """It was delivered to us, perhaps again: an earlier delivery of it is stale."""
        sequence, key = delivery.record.sequence, delivery.record.ordering_key
        self.returning.pop(sequence, None)
        self.out_of_the_way.pop(sequence, None)
        self.suspects.discard(sequence)
        self._lent.discard(sequence)
        self._settling.discard(sequence)
        if key is None:
            self._ready[sequence] = delivery
            return
        self._ready.pop(sequence, None)
        self._write_down(sequence, key)
        self._held[sequence] = delivery
        turn = self._turns.get(key)
        if turn is not None and turn not in self._lent:
            # Nobody has taken the one whose turn it was: the earlier of the two goes first.
            waiting = self._ready.pop(turn, None)
            if waiting is not None:
                self._held[turn] = waiting
            del self._turns[key]
        self._advance(key)

    def take(self, max_messages: int, max_bytes: int) -> list[Delivery]:
        """Lend what may go."""
        taken: list[Delivery] = []
        for delivery in self._ready.values():
            max_bytes -= delivery.record.size
            if len(taken) == max_messages or (taken and max_bytes < 0):
                break
            taken.append(delivery)
        for delivery in taken:
            del self._ready[delivery.record.sequence]
            self._lent.add(delivery.record.sequence)
        return taken

    def settling(self, sequence: int) -> None:
        """The server is being told, and may know of it before we know that it does."""
        if sequence in self._lent:
            self._settling.add(sequence)

    def settled(self, sequence: int) -> None:
        """It will not come again."""
        for away in (self._lent, self._settling, self.suspects):
            away.discard(sequence)
        self.returning.pop(sequence, None)
        self.out_of_the_way.pop(sequence, None)
        self._held.pop(sequence, None)
        self._ready.pop(sequence, None)
        key = self._keys.pop(sequence, None)
        if key is None:
            return
        sequences = self._open[key]
        del sequences[bisect_left(sequences, sequence)]
        if not sequences:
            del self._open[key]
        if self._turns.get(key) == sequence:
            del self._turns[key]
        self._advance(key)

    def given_back(self, sequence: int, due: float = 0.0) -> None:
        """It will come again, when it is `due`: its key waits for it."""
        if sequence not in self._lent:
            return
        self._lent.discard(sequence)
        self._settling.discard(sequence)
        self.returning[sequence] = due
        key = self._keys.get(sequence)
        if key is not None and self._turns.get(key) == sequence:
            del self._turns[key]

    def doubt_lent(self) -> None:
        """What is lent may have gone to somebody else meanwhile, who is done with it: its key waits
        until it is settled, or has come back, or does not exist."""
        for sequence in [s for s in self._lent if s in self._keys]:
            self._lent.discard(sequence)
            self._settling.discard(sequence)
            self.suspects.add(sequence)
            key = self._keys[sequence]
            if self._turns.get(key) == sequence:
                del self._turns[key]

    def doubt_returning(self) -> None:
        """What we gave back may have gone to somebody else: as `doubt_lent`."""
        self.suspects.update(s for s in self.returning if s in self._keys)
        self.returning.clear()
        self.out_of_the_way.clear()

    def doubt_here(self, sequences: Iterable[int] | None = None) -> None:
        """What is here, or these of it, may have gone to somebody else: as `doubt_lent`."""
        for sequence in (*self._held, *self._ready) if sequences is None else sequences:
            here = self._held.pop(sequence, None) or self._ready.pop(sequence, None)
            key = self._keys.get(sequence)
            if here is not None and key is not None:
                self.suspects.add(sequence)
                if self._turns.get(key) == sequence:
                    del self._turns[key]

    def doubt(self, record: Record) -> None:
        """It came, and may be somebody else's by now."""
        sequence, key = record.sequence, record.ordering_key
        if key is not None and not self.knows(sequence):
            self._write_down(sequence, key)
            self.suspects.add(sequence)

    def suspect(self, sequence: int, key: str) -> None:
        """Somebody else may have it."""
        if not self.knows(sequence) and sequence not in self.returning:
            self._write_down(sequence, key)
            self.suspects.add(sequence)

    def is_all(self, pending: int, before: Ours) -> bool:
        """The server knew of `pending` unsettled ones: no more than we know of. `before`: what was
        ours when it was asked; what has come or gone since may be counted or not."""
        unsettled, returning = before.still(self.ours())
        return pending <= unsettled + returning

    def compare(self, pending: int, floor: int, before: Ours) -> None:
        """The same, and that none is unsettled up to `floor`: what does not exist is forgotten."""
        self._forget([s for s in (*self.suspects, *self.returning) if s <= floor])
        unsettled, returning = before.still(self.ours())
        if pending <= unsettled:
            self._forget(before.returning | self.suspects)
        elif pending <= unsettled + returning:
            self._forget(self.suspects)
        if self.halted and self.is_all(pending, before):
            self.go_on()

    def go_on(self) -> None:
        self.halted = False
        for key in list(self._open):
            self._advance(key)

    def give_back_all(self) -> list[Delivery]:
        """What nobody has taken, in order; it will come again."""
        waiting = sorted(
            [*self._held.values(), *self._ready.values()], key=lambda d: d.record.sequence
        )
        for sequence in (d.record.sequence for d in waiting):
            self.returning[sequence] = 0.0
            key = self._keys.get(sequence)
            if key is not None and self._turns.get(key) == sequence:
                del self._turns[key]
        self._held.clear()
        self._ready.clear()
        return waiting

    def give_back_last(self, due: float = 0.0) -> Delivery | None:
        """The last of what waits for its turn; it will come again, when it is `due`."""
        if not self._held:
            return None
        sequence = max(self._held)
        last = self._held.pop(sequence)
        self.returning[sequence], self.out_of_the_way[sequence] = due, last.ack_id
        return last

    @property
    def is_behind(self) -> bool:
        """Some key waits for what may be with somebody else: when the server brings that, it brings
        what came back before it first, whatever it is."""
        return self.halted or any(s[0] in self.suspects for s in self._open.values())

    def next_return(self) -> float | None:
        """When the first is due, or was, of what will come again and others wait for: what only
        waits its turn behind others may be away as long as it likes, if it is in nobody's way."""
        behind = self.is_behind
        return min(
            (due for s, due in self.returning.items() if behind or self._is_first(s)), default=None
        )

    def due(self, now: float) -> int:
        """How many are due of what will come again, if anything of it is waited for."""
        first = self.next_return()
        if first is None or first > now:
            return 0
        return sum(due <= now for due in self.returning.values())

    def _is_first(self, sequence: int) -> bool:
        key = self._keys.get(sequence)
        return key is None or self._open[key][0] == sequence

    def ack_ids(self) -> list[str]:
        """Of what waits here."""
        return [d.ack_id for here in (self._held, self._ready) for d in here.values()]

    def _forget(self, sequences: Iterable[int]) -> None:
        for sequence in list(sequences):
            self.settled(sequence)

    def _write_down(self, sequence: int, key: str) -> None:
        if sequence not in self._keys:
            self._keys[sequence] = key
            insort(self._open.setdefault(key, []), sequence)

    def _advance(self, key: str) -> None:
        if self.halted or key in self._turns or key not in self._open:
            return
        first = self._open[key][0]
        delivery = self._held.pop(first, None)
        if delivery is not None:
            self._turns[key] = first
            self._ready[first] = delivery
