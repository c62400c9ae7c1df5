"""Messages that were handled before are not handled again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, Protocol

from penstock.config import check_callable, check_duration, check_whole
from penstock.consuming.declaration import Middleware
from penstock.consuming.middleware.chain import Call, Next
from penstock.consuming.middleware.per_loop import PerLoop
from penstock.dead_letters.replaying import REPLAY_OF
from penstock.message import Message


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
    """Messages whose key was handled before by their subscription are acked unseen. One that
    arrives while its key is in hand waits here, and is handled if that failed; copies in one batch
    share the fate of the first.

    A key is remembered after its handler is done, so a crash in between lets it be handled twice:
    where that must not be, remember it in the transaction of the handler's own writes.
    """
    check_callable("key", key, "a function of a message")
    if store is not None:
        for method in ("seen", "remember"):
            check_callable(f"{method} of store", getattr(store, method, None), "an async method")
    memory = SeenHere() if store is None else store
    in_hand = PerLoop(_InHand)

    async def once(call: Call, next: Next) -> Any:
        of: dict[str, list[Message]] = {}
        for message in call.messages:
            of.setdefault(f"{call.subscription}/{key(message)}", []).append(message)
        taken = in_hand.here()
        await taken.take(of)
        try:
            fresh = {key: copies for key, copies in of.items() if not await memory.seen(key)}
            return await _first_of_each(call, next, fresh, memory)
        finally:
            taken.free(of)

    return once


async def _first_of_each(
    call: Call, next: Next, fresh: dict[str, list[Message]], memory: Seen
) -> Any:
    call.messages = [copies[0] for copies in fresh.values()]
    try:
        result = await next(call) if fresh else None
        for key, (first, *others) in fresh.items():
            failure = call.failures.get(first)
            if failure is None:
                await memory.remember(key)
            else:
                call.failures.update(dict.fromkeys(others, failure))
    except Exception:
        # Copies have failed with their first, and are there if it is tried again.
        call.messages = [message for copies in fresh.values() for message in copies]
        raise
    return result


class _InHand:
    """Keys that are being handled. Whoever waits for one leaves a bell there."""

    def __init__(self) -> None:
        self._keys: dict[str, asyncio.Event | None] = {}

    async def take(self, keys: Collection[str]) -> None:
        """All of them, once none is in hand: whoever waits holds nothing that others wait for."""
        while (busy := next((key for key in keys if key in self._keys), None)) is not None:
            bell = self._keys[busy] = self._keys[busy] or asyncio.Event()
            await bell.wait()
        self._keys.update(dict.fromkeys(keys))

    def free(self, keys: Collection[str]) -> None:
        for key in keys:
            bell = self._keys.pop(key)
            if bell is not None:
                bell.set()
