"""Messages that were handled before are not handled again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from penstock.config import check_duration, check_whole
from penstock.consuming.declaration import Middleware
from penstock.consuming.middleware.chain import Call, Next
from penstock.dead_letters.replaying import REPLAY_OF
from penstock.message import Message
from penstock.outcomes import Retry

# A copy that arrives while another is being handled asks again after so long.
_LOOK_AGAIN = 5.0


class Seen(Protocol):
    """Remembers keys of messages that were handled: a table or a cache of yours."""

    async def seen(self, key: str) -> bool: ...
    async def remember(self, key: str) -> None: ...


class SeenHere:
    """Remembers in this process: the last `most` keys, for `window` seconds."""

    def __init__(self, *, window: float = 3600.0, most: int = 100_000) -> None:
        check_duration("window", window, 0.001, 31 * 86_400)
        check_whole("most", most, 1)
        self._window = window
        self._most = most
        self._keys: OrderedDict[str, float] = OrderedDict()

    async def seen(self, key: str) -> bool:
        at = self._keys.get(key)
        return at is not None and asyncio.get_running_loop().time() - at < self._window

    async def remember(self, key: str) -> None:
        now = asyncio.get_running_loop().time()
        self._keys[key] = now
        self._keys.move_to_end(key)
        while len(self._keys) > self._most or now - next(iter(self._keys.values())) > self._window:
            self._keys.popitem(last=False)


def original_id(message: Message) -> str:
    """The id it was first published under: a replay of what was handled is a duplicate too."""
    return message.attributes.get(REPLAY_OF, message.id)


def deduplicate(
    store: Seen | None = None, *, key: Callable[[Message], str] = original_id
) -> Middleware:
    """Messages whose key was handled before by their subscription are acked unseen.

    A key is remembered after its handler is done, so a crash in between lets it be handled twice:
    where that must not be, remember it in the transaction of the handler's own writes.
    """
    memory = store or SeenHere()
    in_hand: set[str] = set()

    async def once(call: Call, next: Next) -> Any:
        keys = {message: f"{call.subscription}/{key(message)}" for message in call.messages}
        fresh = [message for message in call.messages if not await memory.seen(keys[message])]
        mine: dict[Message, str] = {}
        for message in fresh:
            if keys[message] in in_hand:
                call.failures[message] = Retry("handled-elsewhere", _LOOK_AGAIN)
            else:
                mine[message] = keys[message]
                in_hand.add(keys[message])
        try:
            call.messages = list(mine)
            result = await next(call) if mine else None
            for message, of in mine.items():
                if message not in call.failures:
                    await memory.remember(of)
            return result
        finally:
            in_hand.difference_update(mine.values())

    return once
