"""When to ask for what is lent or away, and for how much, though there is no room. Pure.

It may come with the next request only. So it is asked for: at once when some is due and while it
comes back, twice as many each time, then, while what comes is new, one by one after pauses that
grow to a second.
"""

from __future__ import annotations

from penstock.brokers.nats.key_book import KeyBook

# Beyond so many that are here the last go back for what comes, and are away no longer than it takes
# to get to them. Longer while a key waits for what may be with somebody else: that stands behind
# them in the server's queue, and each round costs all of them a delivery.
EXTRA = 64
_COMES_BACK_AFTER = 1.0
_OUT_OF_THE_WAY = 2.0
_ASK_AGAIN_AFTER = 0.01
_ASK_EVERY = 1.0


class Returns:
    """What is expected to come back for what a book holds. Time is an argument."""

    __slots__ = ("_at_once", "_book", "_came", "_in_vain")

    def __init__(self, book: KeyBook) -> None:
        self._book = book
        self._at_once = False
        self._came = 0
        self._in_vain = 0.0

    @property
    def away_for(self) -> float:
        """Seconds for which what makes room goes back."""
        return _OUT_OF_THE_WAY if self._book.is_behind else _COMES_BACK_AFTER

    def expected(self) -> None:
        """Something was given back: not to ask for it would be to wait in vain."""
        self._in_vain = 0.0

    def asking(self) -> None:
        """A request is about to be sent."""
        self._came = 0

    def came(self, sequence: int, *, again: bool) -> None:
        """Something came, perhaps again; the book does not know yet."""
        # The server hands over what came back before what is new: there may be more of it. Not if
        # it is what we gave back: to ask for that brings what is new, which goes back in its place.
        self._at_once = again and sequence not in self._book.returning
        if again:
            self._in_vain = 0.0
            self._came += 1

    def pause(self, now: float) -> float | None:
        """Seconds in which another request would bring nothing but what is new, as far as one
        can tell: what is due the server may have a moment later. None: what comes, comes back."""
        if self._at_once:
            self._at_once = False
            return None
        due = self._book.next_return()
        if due is None:
            return _ASK_EVERY
        if due > now:
            self._in_vain = 0.0
            return min(due - now, self.away_for)
        pause = self._in_vain
        self._in_vain = min(2 * pause or _ASK_AGAIN_AFTER, _ASK_EVERY)
        return pause

    def batch(self, now: float) -> int:
        """How many to ask for: as many as may be on their way back, as long as they come."""
        expected = self._book.due(now) + len(self._book.suspects)
        if self._book.halted:
            expected = EXTRA
        return max(1, min(expected, 2 * self._came, EXTRA))
