"""Calling a function in a guarded child process.

A child is a fresh interpreter (never a fork), kept warm and reused: starting one and importing
the decoders costs some 300 ms, a call to a warm one a millisecond or so. A child that crashed, ran
out of time or memory, or spoke out of turn is killed with its process group and not used again.

`guarded_child.py` is the other side.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from penstock.media.errors import MediaError
from penstock.media.guard.child_main import (
    DATA,
    ERROR,
    FRAME,
    RESULT,
    Failure,
    Limits,
    Request,
)
from penstock.media.guard.children import Child, monotonic, open_regular

T = TypeVar("T")
Media = Path | str | int | None


class _Job:
    """One call on its way; `abort` ends it from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._aborted = False

    def begin(self, child: Child) -> bool:
        with self._lock:
            self._child = child
            return not self._aborted

    def end(self) -> None:
        with self._lock:
            self._child = None

    def abort(self) -> None:
        with self._lock:
            self._aborted = True
            if self._child is not None:
                self._child.abort()


class _Lent:
    """A child in use. It goes back to the pool only when it is known to be well."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.healthy = False

    def failure(self, body: bytearray) -> MediaError:
        told: Failure = _decode(body, Failure)
        # An orderly refusal says nothing bad about the child; memory run out may.
        self.healthy = told.reason != "out_of_memory"
        return MediaError(told.reason, told.message[:200], permanent=told.permanent)


class GuardPool:
    """Warm children for guarded calls.

    `size` bounds the async calls that run together and the idle children kept; blocking calls and
    streams are bounded by whoever makes them. Thread-safe; survives a fork by starting anew.
    """

    def __init__(self, size: int = 2, *, jobs_per_child: int = 500) -> None:
        self._size = size
        self._jobs_per_child = jobs_per_child
        self._idle: list[Child] = []
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        for child in self._idle:
            child.forget()
        self._lock = threading.Lock()
        self._idle = []
        self._threads: ThreadPoolExecutor | None = None

    async def run(
        self,
        function: Callable[..., T],
        *args: Any,
        media: Media = None,
        limits: Limits | None = None,
    ) -> T:
        """`run_blocking` without blocking the loop. Cancelling kills the child."""
        job = _Job()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(
            self._executor(), lambda: self._run(job, function, args, media, limits or Limits())
        )
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            job.abort()
            future.cancel()
            raise

    def run_blocking(
        self,
        function: Callable[..., T],
        *args: Any,
        media: Media = None,
        limits: Limits | None = None,
    ) -> T:
        """The result of `function(media, *args)` in a child; whatever goes wrong is a MediaError.

        `function` is a module's function with a return annotation; `media` a path or descriptor
        that it gets as a binary file, first.
        """
        return self._run(_Job(), function, args, media, limits or Limits())

    def stream(
        self,
        function: Callable[..., Iterator[bytes]],
        *args: Any,
        media: Media = None,
        limits: Limits | None = None,
    ) -> Iterator[bytearray]:
        """The blocks of a generator function. The child waits while nobody takes the next one."""
        limits = limits or Limits()
        with _opened(media) as file, self._child() as lent:
            lent.child.ask(_request(function, args, file, limits, stream=True), file)
            while True:
                kind, body = lent.child.receive(monotonic() + limits.seconds, FRAME)
                if kind == DATA:
                    yield body
                    continue
                if kind == ERROR:
                    raise lent.failure(body)
                lent.healthy = kind == RESULT
                return

    def close(self) -> None:
        """End the idle children. The pool can be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
            threads, self._threads = self._threads, None
        for child in idle:
            child.kill()
        if threads is not None:
            threads.shutdown(wait=False)

    def _run(
        self,
        job: _Job,
        function: Callable[..., T],
        args: tuple[Any, ...],
        media: Media,
        limits: Limits,
    ) -> T:
        kind = get_type_hints(function)["return"]
        with _opened(media) as file, self._child(job) as lent:
            deadline = monotonic() + limits.seconds
            lent.child.ask(_request(function, args, file, limits, stream=False), file)
            tag, body = lent.child.receive(deadline, max(limits.output_bytes, FRAME))
            if tag == ERROR:
                raise lent.failure(body)
            if tag != RESULT:
                raise MediaError("crashed", "The child spoke out of turn")
            result: T = _decode(body, kind)
            lent.healthy = True
            return result

    @contextmanager
    def _child(self, job: _Job | None = None) -> Iterator[_Lent]:
        lent = _Lent(self._take())
        try:
            if job is not None and not job.begin(lent.child):
                raise MediaError("cancelled", permanent=False)
            yield lent
        finally:
            if job is not None:
                job.end()
            self._give_back(lent.child, healthy=lent.healthy)

    def _take(self) -> Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Child()

    def _give_back(self, child: Child, *, healthy: bool) -> None:
        if healthy and child.jobs < self._jobs_per_child:
            with self._lock:
                if len(self._idle) < self._size:
                    self._idle.append(child)
                    return
        child.kill()

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._size, thread_name_prefix="guard")
            return self._threads


def _request(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    media: int | None,
    limits: Limits,
    *,
    stream: bool,
) -> Request:
    return Request(
        module=function.__module__,
        function=function.__qualname__,
        args=list(args),
        limits=limits,
        stream=stream,
        media=media is not None,
    )


@contextmanager
def _opened(media: Media) -> Iterator[int | None]:
    """A descriptor of the media, before a child is taken for it."""
    if media is None or isinstance(media, int):
        yield media
        return
    descriptor = open_regular(media)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _decode(body: bytearray, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # A value outside what its type allows: absurd media, or a child gone wrong.
        text = "What was read from the file is out of all bounds; make the file anew"
        raise MediaError("malformed", text) from None


_pools: weakref.WeakSet[GuardPool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool._reset()


def _at_exit() -> None:
    for pool in list(_pools):
        pool.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


shared_pool = GuardPool()


async def run_guarded(
    function: Callable[..., T],
    *args: Any,
    media: Media = None,
    limits: Limits | None = None,
    pool: GuardPool | None = None,
) -> T:
    """`GuardPool.run` on the pool every caller of this process shares."""
    return await (pool or shared_pool).run(function, *args, media=media, limits=limits)


def run_guarded_blocking(
    function: Callable[..., T],
    *args: Any,
    media: Media = None,
    limits: Limits | None = None,
    pool: GuardPool | None = None,
) -> T:
    """The same for callers without an event loop, such as a Spark task."""
    return (pool or shared_pool).run_blocking(function, *args, media=media, limits=limits)


def stream_guarded(
    function: Callable[..., Iterator[bytes]],
    *args: Any,
    media: Media = None,
    limits: Limits | None = None,
    pool: GuardPool | None = None,
) -> Iterator[bytearray]:
    """`GuardPool.stream` on the shared pool."""
    return (pool or shared_pool).stream(function, *args, media=media, limits=limits)


__all__ = [
    "GuardPool",
    "Limits",
    "open_regular",
    "run_guarded",
    "run_guarded_blocking",
    "shared_pool",
    "stream_guarded",
]
