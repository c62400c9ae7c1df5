"""Running handlers: plain ones on the spot, async ones on tasks that are reused."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from contextvars import Context, copy_context
from inspect import isawaitable
from operator import is_not
from typing import Any, cast

from penstock.message import Message, Owner
from penstock.subscribing.source import GoesOn, Handler
from penstock.subscribing.threads import HandlerThreads

# Each worker that finds more work calls up to this many others before it starts, so that a
# batch of handlers that wait is spread in few turns of the loop, while handlers that never wait
# are all run by one worker.
_CALL_UP = 2


class HandlerPool:
    """Calls those who listen, and runs what async ones return, so many at a time.

    A task a message would cost more than most handlers do, so workers are kept and take one
    message after the other. Each message runs in its own context: what a handler sets in a
    context variable is not seen by the next.

    `on_done` is told when an async handler has ended, and when any has failed. `may_start` is
    asked when the turn of one has come that had to wait; if not, it is dropped.
    """

    def __init__(
        self,
        owner: Owner,
        *,
        may_start: Callable[[Message], bool],
        on_done: Callable[[Message, BaseException | None], None],
    ) -> None:
        self.owner = owner
        """Who answers for the verbs of messages that handlers are given."""
        self._on_loop = owner
        self._may_start = may_start
        self._on_done = on_done
        self._listeners: Sequence[Handler] = ()
        self._handlers: Sequence[Handler] = ()
        self._handler: Handler | None = None
        self.listening = False
        """There is somebody to call."""
        self._threads: HandlerThreads | None = None
        self._most = self._limit = 1
        # Handlers must not see what happened to be set where they are called from.
        self._context = copy_context()
        self._waiting: deque[tuple[Message, Awaitable[Any], Context]] = deque()
        self._running: dict[Message, asyncio.Task[None]] = {}
        self._parked: dict[asyncio.Task[None], asyncio.Future[None]] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._flowing = True

    # Who is called.

    def configure(self, most: int, threads: int) -> list[Message]:
        """Run at most so many at a time; blocking ones in so many threads, or 0: on the loop.
        Returns what waited for other threads, to be handed over anew."""
        self._most = most
        before = self._threads
        if threads == (before.count if before is not None else 0):
            self.listen(self._listeners)
            return []
        self._threads = HandlerThreads(threads, self._on_loop) if threads else None
        self.owner = self._threads or self._on_loop
        self.listen(self._listeners)
        if before is None:
            return []
        before.retire()
        return self.take_waiting()

    def listen(self, listeners: Sequence[Handler]) -> None:
        """Call these from now on, one after the other."""
        self._listeners = self._handlers = tuple(listeners)
        self._limit = self._most
        if self._threads is not None:
            self._handlers = [self._threads.wrap(listener) for listener in listeners]
            if any(map(is_not, self._handlers, self._listeners)):
                self._limit = min(self._most, self._threads.count)
        self._handler = self._call_all if len(listeners) > 1 else next(iter(self._handlers), None)
        self.listening = self._handler is not None

    def close(self) -> None:
        """Give up the threads."""
        if self._threads is not None:
            self._threads.close()

    async def _call_all(self, message: Message) -> None:
        # Those who listen when its turn has come.
        for handler in self._handlers:
            work = handler(message)
            if isawaitable(work):
                await work

    # Calling them.

    def __len__(self) -> int:
        """Async handlers that have not ended."""
        return len(self._running) + len(self._waiting)

    def is_running(self, message: Message) -> bool:
        return message in self._running

    def messages_on(self, task: asyncio.Task[Any] | None) -> list[Message]:
        """The messages whose handler runs on this task: one, or a batch."""
        own = [message for message, worker in self._running.items() if worker is task]
        for listener in self._listeners:
            if isinstance(listener, GoesOn):
                own += listener.messages_on(task)
        return own

    def call(self, message: Message) -> bool:
        """False: as many as may are busy, and its turn will come."""
        context = self._context.copy()
        try:
            work = context.run(self._handler, message)  # type: ignore[arg-type]
        except BaseException as error:
            self._on_done(message, error)
            return True
        if work is None or not isawaitable(work):
            return True
        self._waiting.append((message, work, context))
        if not self._starting:
            self._call_up()
        return len(self._running) + len(self._waiting) <= self._limit

    def pause(self) -> list[Message]:
        """Start nothing until `resume`; returns what waits for that."""
        self._flowing = False
        return [message for message, _, _ in self._waiting]

    def resume(self) -> None:
        self._flowing = True
        if self._waiting and not self._starting:
            self._call_up()

    def take_waiting(self) -> list[Message]:
        """Remove what has not started."""
        messages = []
        while self._waiting:
            message, work, _ = self._waiting.popleft()
            _discard(work)
            messages.append(message)
        return messages

    async def cancel(self, spared: Collection[Message], grace: float) -> list[Message]:
        """Cancel the handlers that run, but for those of `spared` messages, and end their tasks.
        Waits up to `grace` seconds for those that refuse to end. Returns whose were cancelled."""
        cancelled = [message for message in self._running if message not in spared]
        kept = {self._running[message] for message in spared if message in self._running}
        workers = {worker for worker in self._workers - kept if not worker.done()}
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers, timeout=grace)
        return cancelled

    def _call_up(self) -> None:
        if not self._flowing:
            return
        if self._parked:
            worker, parked = self._parked.popitem()
            if not parked.done():
                parked.set_result(None)
        elif len(self._workers) < self._limit:
            # Owned here: `cancel` ends every worker and waits for it.
            worker = asyncio.get_running_loop().create_task(
                self._work(), context=self._context.copy()
            )
            self._workers.add(worker)
            worker.add_done_callback(self._worker_ended)
        else:
            return
        self._starting.add(worker)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        """However it ended, also before its first step: what waits must not wait for it."""
        self._workers.discard(worker)
        self._starting.discard(worker)
        self._parked.pop(worker, None)
        failure = None if worker.cancelled() else worker.exception()
        if isinstance(failure, GeneratorExit):
            # What its handler waited for, a thread perhaps, failed with this: no task survives it.
            for message in [m for m, running in self._running.items() if running is worker]:
                del self._running[message]
                self._on_done(message, failure)
        if self._waiting and not self._starting:
            self._call_up()

    async def _work(self) -> None:
        worker = cast("asyncio.Task[None]", asyncio.current_task())
        while True:
            self._starting.discard(worker)
            while self._waiting and self._flowing and len(self._workers) <= self._limit:
                message, work, context = self._waiting.popleft()
                if not self._may_start(message):
                    _discard(work)
                    self._on_done(message, None)
                    continue
                for _ in range(min(_CALL_UP, len(self._waiting)) - len(self._starting)):
                    self._call_up()
                await self._run(worker, message, work, context)
            if len(self._workers) > self._limit:
                return
            self._parked[worker] = parked = asyncio.get_running_loop().create_future()
            await parked

    async def _run(
        self, worker: asyncio.Task[None], message: Message, work: Awaitable[Any], context: Context
    ) -> None:
        self._running[message] = worker
        failure = await InContext(work, context)
        del self._running[message]
        self._on_done(message, failure)
        if worker.cancelling():
            # Somebody wants this task to end, not only its handler.
            raise asyncio.CancelledError


class InContext:
    """Awaits `work` step by step inside `context`, on the current task; the result is what it
    raised, if it did, whatever that is."""

    __slots__ = ("_context", "_work")

    def __init__(self, work: Awaitable[Any], context: Context) -> None:
        self._work = work
        self._context = context

    def __await__(self) -> Generator[Any, Any, BaseException | None]:
        run = self._context.run
        step: Callable[..., Any] = self._work.__await__
        value: tuple[Any, ...] = ()
        steps: Any = None
        while True:
            try:
                waited_for = run(step, *value)
            except StopIteration:
                return None
            except BaseException as error:
                return error
            if steps is None:
                steps, step = waited_for, waited_for.__next__
                continue
            try:
                yield waited_for
            except GeneratorExit:
                # The task is thrown away; the handler did not raise this.
                run(steps.close)
                raise
            except BaseException as error:
                step, value = steps.throw, (error,)
            else:
                step, value = steps.__next__, ()


def _discard(work: Awaitable[Any]) -> None:
    """Dispose of what will not be awaited, without a warning that it never was."""
    if asyncio.iscoroutine(work):
        work.close()
    elif isinstance(work, asyncio.Future):
        work.cancel()
