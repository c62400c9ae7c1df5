"""How much may be in flight. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config import check_whole
from penstock.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowControl:
    """How much a subscriber takes on at once.

    `max_messages`, `max_bytes`: pulling stops when the unsettled messages reach either; bytes are
    those of data and attributes.
    `allow_excess_messages`: let a batch that was asked for while there was room go over.
    """

    max_messages: int = 1000
    max_bytes: int = 100 * 2**20
    allow_excess_messages: bool = False

    def __post_init__(self) -> None:
        check_whole("max_messages", self.max_messages, 1)
        check_whole("max_bytes", self.max_bytes, 1)
        if not isinstance(self.allow_excess_messages, bool):
            raise InvalidArgumentError(
                f"allow_excess_messages must be True or False, not {self.allow_excess_messages!r}"
            )


class Window:
    """Bounds what is in flight by count and bytes.

    Room is reserved before a batch is asked for and taken when it has arrived, so several askers
    together never overshoot. One message may pass the byte bound: a message larger than the room
    left must be able to go through some time.
    """

    __slots__ = ("bytes", "max_bytes", "max_messages", "messages", "reserved", "reserved_bytes")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.messages = 0
        self.bytes = 0
        self.reserved = 0
        self.reserved_bytes = 0

    @property
    def full(self) -> bool:
        """No message may be taken now."""
        return self.messages >= self.max_messages or self.bytes >= self.max_bytes

    @property
    def room(self) -> int:
        """Messages that are neither in flight nor reserved."""
        return max(0, self.max_messages - self.messages - self.reserved)

    @property
    def room_bytes(self) -> int:
        return max(0, self.max_bytes - self.bytes - self.reserved_bytes)

    def take(self, messages: int, size: int) -> None:
        """What comes without having been asked for."""
        self.messages += messages
        self.bytes += size

    def release(self, messages: int, size: int) -> None:
        self.messages -= messages
        self.bytes -= size


class Room:
    """What is kept of a window for a batch that was asked for, until it has come."""

    __slots__ = ("_window", "asked", "messages", "size")

    def __init__(self, window: Window, messages: int, size: int) -> None:
        self._window = window
        self.asked = messages
        self.messages = messages
        """How many may still come; and bytes of them."""
        self.size = size
        window.reserved += messages
        window.reserved_bytes += size

    def use(self, messages: int, size: int) -> None:
        """So much of it has come, and is in the window from now on."""
        window = self._window
        window.messages += messages
        window.bytes += size
        kept = min(size, self.size)  # One message may be larger than the room for it.
        window.reserved -= messages
        window.reserved_bytes -= kept
        self.messages -= messages
        self.size -= kept

    def give_up(self) -> None:
        """Nothing more will come."""
        self._window.reserved -= self.messages
        self._window.reserved_bytes -= self.size
        self.messages = self.size = 0
