"""One StreamingPull, kept alive: opened again when it ends, until that cannot be done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc.aio

from penstock.brokers.google.connection import Connection
from penstock.errors import PenstockError, UnavailableError
from penstock.googlepubsub.messages import StreamingPullRequest
from penstock.retrying import Failures, Persistence
from penstock.rules.backoff import Backoff

# Streams end all the time, by Google's design. Only one that cannot be opened is news.
_PERSISTENCE = Persistence(backoff=Backoff(initial=0.1, maximum=10.0), attempts=4)
# One that has lasted this long was a good one, whether or not it brought anything.
_PROVEN_AFTER = 10.0
# Google takes a stream for dead after a minute without a word.
_KEEPALIVE = 20.0
_MOST_BYTES = 2**40


class Stream:
    """`deliver` is given what arrives, and waits while there is no room for more."""

    def __init__(
        self,
        connection: Connection,
        resource: str,
        *,
        ack_deadline: int,
        window: int,
        window_bytes: int,
        deliver: Callable[[Sequence[Any]], Awaitable[None]],
    ) -> None:
        self.window = window
        self.window_bytes = window_bytes
        self._connection = connection
        self._resource = resource
        self._deliver = deliver
        self._heard = False
        self._first = StreamingPullRequest(
            subscription=resource,
            stream_ack_deadline_seconds=ack_deadline,
            max_outstanding_messages=window,
            max_outstanding_bytes=min(window_bytes, _MOST_BYTES),
            client_id=f"penstock-{id(self):x}",
        )

    async def run(self) -> PenstockError:
        """Until cancelled, or until it cannot go on: then it returns why."""
        failures = Failures(_PERSISTENCE)
        loop = asyncio.get_running_loop()
        while True:
            opened = loop.time()
            self._heard = False
            try:
                await self._read()
            except grpc.aio.AioRpcError as failure:
                error = self._connection.stream_fault(failure, self._resource)
            else:
                error = UnavailableError(f"StreamingPull of {self._resource} ended without a word")
            if self._heard or loop.time() - opened > _PROVEN_AFTER:
                failures.clear()
            pause = failures.pause_after(error, loop.time())
            if pause is None:
                return error
            await asyncio.sleep(pause)

    async def _read(self) -> None:
        """One stream from its first request to its end."""
        call = self._connection.stream(self._resource)
        keeping: asyncio.Task[None] | None = None
        try:
            await call.write(self._first)
            keeping = asyncio.create_task(_keep_alive(call))
            while (response := await call.read()) is not grpc.aio.EOF:
                self._heard = True
                if response.received_messages:
                    await self._deliver(response.received_messages)
        finally:
            if keeping is not None:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
            call.cancel()


async def _keep_alive(call: Any) -> None:
    """Ends with the stream: whoever reads it learns why."""
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await asyncio.sleep(_KEEPALIVE)
            await call.write(StreamingPullRequest())
