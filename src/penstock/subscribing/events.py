"""Named events with listeners, plain or async."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from inspect import isawaitable
from typing import Any, TypeVar

from penstock.errors import InvalidArgumentError

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("penstock")


class Events:
    """Listeners by event name. A listener that raises is logged and does not stop the others."""

    def __init__(self, owner: str, names: tuple[str, ...]) -> None:
        self._owner = owner
        self._listeners: dict[str, list[Callable[..., Any]]] = {name: [] for name in names}
        self._tasks: set[asyncio.Future[Any]] = set()

    def listeners(self, event: str) -> list[Callable[..., Any]]:
        found = self._listeners.get(event)
        if found is None:
            known = ", ".join(self._listeners)
            raise InvalidArgumentError(f"{self._owner} has no event {event!r}; it has {known}")
        return found

    def add(self, event: str, listener: F) -> F:
        if not callable(listener):
            raise InvalidArgumentError(
                f"A listener of {event!r} must be callable, not {type(listener).__name__}"
            )
        self.listeners(event).append(listener)
        return listener

    def remove(self, event: str, listener: Callable[..., Any]) -> None:
        """No effect when it is not there."""
        listeners = self.listeners(event)
        if listener in listeners:
            listeners.remove(listener)

    def emit(self, event: str, *args: Any) -> None:
        """Call every listener; async ones run on by themselves, see `finish`."""
        for listener in list(self.listeners(event)):
            try:
                work = listener(*args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:
                _log.exception("%s: a listener of %r failed", self._owner, event)
            else:
                if isawaitable(work):
                    # Owned here: `finish` waits for it.
                    task = asyncio.ensure_future(work)
                    self._tasks.add(task)
                    task.add_done_callback(lambda done: self._ended(event, done))

    async def finish(self, timeout: float) -> None:
        """Wait for async listeners that still run; cancel those that take longer."""
        current = asyncio.current_task()
        tasks = {task for task in self._tasks if task is not current}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                task.cancel()

    def _ended(self, event: str, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s: a listener of %r failed", self._owner, event, exc_info=task.exception())
