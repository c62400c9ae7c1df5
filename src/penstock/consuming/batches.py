"""Gathering messages into batches: full, or waited long enough."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from penstock.callbacks import survive
from penstock.consuming.handling import HandleBatch
from penstock.errors import ClosedError
from penstock.message import Message

# Handlers that were cancelled have this long to clean up.
_GRACE = 5.0


class Batches:
    """A plain handler that collects, and calls with what it collected.

    A batch leaves when it has `size` messages or its first one has waited `wait` seconds. One timer
    and one task a batch.
    """

    def __init__(self, handle: HandleBatch, *, size: int, wait: float) -> None:
        self._handle = handle
        self._size = size
        self._wait = wait
        self._waiting: list[Message] = []
        self._timer: asyncio.TimerHandle | None = None
        self._running: dict[asyncio.Task[Any], list[Message]] = {}
        self._spared: set[asyncio.Task[Any]] = set()

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def __call__(self, message: Message) -> None:
        self._waiting.append(message)
        if len(self._waiting) >= self._size:
            self._leave()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._wait, self._leave)

    def messages_on(self, task: asyncio.Task[Any] | None) -> Collection[Message]:
        """The batch whose handler runs on this task."""
        return () if task is None else self._running.get(task, ())

    def hurry(self) -> None:
        """Nothing more is to come: wait for no one from here on."""
        self._wait = 0.0
        self._leave()

    def spare(self, task: asyncio.Task[Any] | None) -> None:
        """It waits for the end: `aclose` neither cancels it nor waits for it."""
        if task is not None and task in self._running:
            self._spared.add(task)

    async def aclose(self) -> None:
        """Cancel what still runs, and wait a while for it. Its messages were given back when the
        subscription closed."""
        tasks = self._running.keys() - self._spared
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_GRACE)

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        if batch:
            # Owned here: `aclose` ends it.
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._running[task] = batch
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._running[task]
        self._spared.discard(task)

    async def _run(self, batch: list[Message]) -> None:
        try:
            await self._handle(batch)
        except BaseException as error:
            # What is in hand is extended for ever: nothing may stay unanswered, unless the
            # subscription or the loop has ended.
            with suppress(ClosedError, RuntimeError):
                for message in batch:
                    message.nack()
            if isinstance(error, asyncio.CancelledError | GeneratorExit):
                raise
            survive(error, f"Answering for a batch of {len(batch)} messages")
