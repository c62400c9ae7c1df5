"""Threads that keep no process from ending."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Work: TypeAlias = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(Executor):
    """Up to `count` threads, started as they are needed.

    As a `ThreadPoolExecutor`, but for the end: there the interpreter waits for every thread, and a
    function that never returns would keep a process that was told to end.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._unfinished = 0
        self._closed = False
        self._lock = Lock()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"The threads of {self._name!r} were shut down")
            self._work.put((future, partial(function, *args, **kwargs)))
            self._unfinished += 1
            if len(self._threads) < min(self._unfinished, self._count):
                self._start_thread()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._closed = True
            if cancel_futures:
                self._cancel_waiting()
            for _ in self._threads:
                self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _cancel_waiting(self) -> None:
        while True:
            try:
                work = self._work.get_nowait()
            except Empty:
                return
            if work is not None:
                work[0].cancel()

    def _start_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            tell = _done(*work)
            with self._lock:
                self._unfinished -= 1
            tell()
            del work, tell  # Waiting for the next one keeps nothing of the last.


def _done(future: Future[Any], function: Callable[[], Any]) -> Callable[[], None]:
    """Call it; returns what tells of it."""
    if not future.set_running_or_notify_cancel():
        return lambda: None
    try:
        return partial(future.set_result, function())
    except StopIteration as error:
        # As coroutines have it: no future of asyncio takes this one, and who waits would hang.
        raised = RuntimeError("The function raised StopIteration")
        raised.__cause__ = error
        return partial(future.set_exception, raised)
    except BaseException as error:
        return partial(future.set_exception, error)
