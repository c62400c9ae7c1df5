"""Telling a listener, without letting it hurt the flow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any

from penstock.callbacks import survive
from penstock.publishing.options import PublisherListener


class Announcer:
    """Calls a listener's methods. What async ones return is awaited by one task, in order."""

    def __init__(self, listener: PublisherListener | None) -> None:
        self._listener = listener
        self.has_listener = listener is not None
        self._waiting: deque[Awaitable[Any]] = deque()
        self._task: asyncio.Task[None] | None = None

    def tell(self, event: str, *args: Any) -> None:
        if self._listener is None:
            return
        try:
            work = getattr(self._listener, event)(*args)
        except BaseException as error:
            survive(error, f"{event} of a publisher's listener")
            return
        if work is not None and isawaitable(work):
            self._waiting.append(work)
            if self._task is None:
                # Owned here: `finish` waits for it.
                self._task = asyncio.get_running_loop().create_task(self._run())

    async def finish(self, timeout: float) -> None:
        """Wait for what async methods still do; cancel what takes longer."""
        if self._task is None or self._task is asyncio.current_task():
            return
        await asyncio.wait({self._task}, timeout=timeout)
        if self._task is not None:
            self._task.cancel()
            for work in self._waiting:
                if asyncio.iscoroutine(work):
                    work.close()
            self._waiting.clear()

    async def _run(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._waiting.popleft()
                except BaseException as error:
                    if self._task is not None and self._task.cancelling():
                        raise
                    survive(error, "A publisher's listener")
        finally:
            self._task = None
