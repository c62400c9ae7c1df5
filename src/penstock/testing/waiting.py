"""Waiting in tests: for a condition, or for everything to come to rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Turns of the loop that anything Penstock does in one step needs at most, with room to spare.
_TURNS = 50


async def settled() -> None:
    """Let everything happen that needs no time to pass."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def eventually(condition: Callable[[], object], *, within: float = 60.0) -> None:
    """Wait until `condition()` is true; fails after `within` seconds of the loop's time, by
    default long enough for a busy machine."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    await settled()
    while not condition():
        if loop.time() >= until:
            raise AssertionError(f"Not true within {within:g} s: {_source(condition)}")
        await asyncio.sleep(min(within / 1000, 0.01))


def _source(condition: Callable[[], object]) -> str:
    code = getattr(condition, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(condition)
