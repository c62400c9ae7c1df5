"""Who may be in flight: a window with hold and refill, one flight of a key at a time. Pure, but
for the futures of those who wait outside."""

from __future__ import annotations

import asyncio
from collections import deque

from penstock.errors import PenstockError
from penstock.publishing.flight import Flight
from penstock.rules.lanes import Lanes
from penstock.rules.window import Window


class Admission:
    """Counts flights in and out, and says whose turn it is.

    When the window is full a hold begins, which lasts until no more than `refill_at` flights are
    left. Whoever comes meanwhile waits outside, first come, first served. A key whose flight
    failed for good may be closed: nothing of it enters until it is opened again.
    """

    __slots__ = ("_closed_keys", "_lanes", "_outside", "_refill_at", "holding", "window")

    def __init__(self, max_in_flight: int, max_bytes: int, refill_at: int) -> None:
        self.window = Window(max_in_flight, max_bytes)
        self.holding = False
        self._refill_at = refill_at
        self._lanes: Lanes[Flight] = Lanes()
        self._outside: deque[tuple[asyncio.Future[None], Flight]] = deque()
        self._closed_keys: dict[tuple[str, str], PenstockError] = {}

    def enter(self, flight: Flight) -> bool:
        """Count it in; whether it may go now or waits behind another of its key."""
        window, draft = self.window, flight._draft
        window.messages += 1
        window.bytes += len(draft.data)
        if window.messages >= window.max_messages or window.bytes >= window.max_bytes:
            self.holding = True
        key = draft.ordering_key
        return key is None or self._lanes.enter(f"{flight.topic} {key}", flight)

    def leave(self, flight: Flight) -> Flight | None:
        """Count it out; the next of its key, whose turn it now is."""
        draft = flight._draft
        self.window.release(1, len(draft.data))
        key = draft.ordering_key
        return None if key is None else self._lanes.leave(f"{flight.topic} {key}")

    def lift_hold(self) -> bool:
        """Whether a hold has just ended, because enough have left."""
        window = self.window
        if self.holding and window.messages <= self._refill_at and not window.full:
            self.holding = False
            return True
        return False

    # Those who wait outside.

    @property
    def has_waiting(self) -> bool:
        return any(not turn.done() for turn, _ in self._outside)

    async def wait(self, flight: Flight) -> None:
        """Until it was let in. Cancelled before that, it is forgotten; after it, it goes on."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outside.append((turn, flight))
        await turn

    def next_waiting(self) -> Flight | None:
        """Let in the first who still waits, if there is no hold."""
        while self._outside and not self.holding:
            turn, flight = self._outside.popleft()
            if not turn.done():
                turn.set_result(None)
                return flight
        return None

    def turn_away(self, error: PenstockError) -> None:
        """Nobody who waits will be let in."""
        while self._outside:
            turn, _ = self._outside.popleft()
            if not turn.done():
                turn.set_exception(error)

    # Keys that are closed.

    @property
    def closed_keys(self) -> frozenset[tuple[str, str]]:
        return frozenset(self._closed_keys)

    def close_key(self, flight: Flight, error: PenstockError) -> None:
        key = flight._draft.ordering_key
        if key is not None:
            self._closed_keys.setdefault((flight.topic, key), error)

    def open_key(self, topic: str, key: str) -> bool:
        """Whether it was closed."""
        return self._closed_keys.pop((topic, key), None) is not None

    def why_closed(self, flight: Flight) -> PenstockError | None:
        """What failed for good, if the key of this flight is closed."""
        if not self._closed_keys:
            return None
        return self._closed_keys.get((flight.topic, flight._draft.ordering_key or ""))
