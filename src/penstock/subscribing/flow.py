"""Flow control at work: how much is in hand, how much pulls may ask for, who waits for room."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.message import MAX_DATA_BYTES
from penstock.rules.window import FlowControl, Room, Window
from penstock.subscribing.options import SubscriberOptions


class Flow:
    """The window of a stream, divided among its pulls.

    `ahead` bounds what is fetched for somebody who takes messages one by one; None: no bound.
    """

    def __init__(self) -> None:
        self.window = Window(1, 1)
        self.max_delivered = 1
        """Messages that may be with handlers at once; what is fetched beyond that waits."""
        self.ahead: int | None = None
        self._control = FlowControl()
        self._streams = 1
        self._news = asyncio.Event()
        self.watched = False
        """Somebody waits for a change."""

    def configure(self, options: SubscriberOptions) -> None:
        streaming = options.streaming
        self._control = options.flow_control
        self.max_delivered = self._control.max_messages
        self._streams = streaming.max_streams
        fetched_ahead = streaming.max_streams * streaming.high_water_mark
        self.window.max_messages = self._control.max_messages + fetched_ahead
        self.window.max_bytes = self._control.max_bytes

    def full(self, waiting: int) -> bool:
        """As many messages as allowed are beyond waiting."""
        if self._control.allow_excess_messages:
            return False
        return self.window.messages - waiting >= self._control.max_messages

    # Pulls.

    def share(self, *, unsent: int, waiting: int) -> tuple[int, int]:
        """How many messages and bytes the next pull may ask for; none while too many settlements
        are unsent.

        Each pull gets its share, so that all of them can work. A share of bytes is at least
        one message of the largest size, or the only one: two pulls never overshoot the bound
        together.
        """
        control, window = self._control, self.window
        if window.full or unsent > 2 * control.max_messages:
            return 0, 0
        if control.allow_excess_messages:
            return control.max_messages, control.max_bytes
        if window.reserved_bytes and window.room_bytes < MAX_DATA_BYTES:
            return 0, 0
        messages = min(-(-window.max_messages // self._streams), window.room)
        size = min(max(window.max_bytes // self._streams, MAX_DATA_BYTES), window.room_bytes)
        if self.ahead is not None:
            messages = min(messages, self.ahead - waiting - window.reserved)
        return (messages, size) if messages > 0 and size > 0 else (0, 0)

    @contextmanager
    def reserved(self, messages: int, size: int) -> Iterator[Room]:
        """Keep room for a pull that runs."""
        room = Room(self.window, messages, size)
        try:
            yield room
        finally:
            room.give_up()
            self.changed()

    # Those who wait: pulls for room, a loop for messages, closing for the end.

    async def change(self) -> None:
        """Wait until something has come, been let go of or been sent."""
        self.watched = True
        self._news.clear()
        await self._news.wait()

    def changed(self) -> None:
        if self.watched:
            self.watched = False
            self._news.set()
