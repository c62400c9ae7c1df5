"""Sending settlements: in batches, in order, retried while it makes sense."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock.clock import Clock
from penstock.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from penstock.message import AckResponse, Settlement
from penstock.rules.backoff import Backoff

_BATCH = 1000


class Settler:
    """Collects settlements and sends what has gathered whenever the last call has returned.

    A call that fails for a passing reason is repeated for `patience` seconds: by then the leases
    have run out and the broker redelivers anyway. Every response future ends, at the latest when
    the settler is closed.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Settlement]], Awaitable[Sequence[AckResponse]]],
        *,
        clock: Clock,
        backoff: Backoff,
        patience: float,
        on_error: Callable[[Exception], None],
        on_refused: Callable[[Settlement, AckResponse], None],
        on_sent: Callable[[], None],
    ) -> None:
        self._send = send
        self._clock = clock
        self.backoff = backoff
        self.patience = patience
        self._on_error = on_error
        self._on_refused = on_refused
        self._on_sent = on_sent
        self._pending: list[Settlement] = []
        self._answers: list[tuple[int, asyncio.Future[AckResponse]]] = []
        self._sending: list[tuple[int, asyncio.Future[AckResponse]]] = []
        self._unanswered = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """Settlements that wait to be sent."""
        return len(self._pending)

    def add(self, settlement: Settlement) -> None:
        if not self._pending:
            self._wake.set()
            self._idle.clear()
        self._pending.append(settlement)

    def add_with_response(self, settlement: Settlement) -> asyncio.Future[AckResponse]:
        answer: asyncio.Future[AckResponse] = asyncio.get_running_loop().create_future()
        self._answers.append((len(self._pending), answer))
        self.add(settlement)
        return answer

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                await self._send_next()
            self._idle.set()

    async def flushed(self) -> None:
        """Wait until everything is sent."""
        await self._idle.wait()

    async def drain(self, timeout: float) -> int:
        """Wait until everything is sent, at most `timeout` seconds; returns what was not."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return self._unanswered + len(self._pending)
        return 0

    def close(self) -> None:
        """Give up what was not sent: its futures end with OTHER."""
        for _, answer in [*self._sending, *self._answers]:
            if not answer.done():
                answer.set_result(AckResponse.OTHER)
        self._pending.clear()
        self._answers.clear()
        self._idle.set()

    async def _send_next(self) -> None:
        batch, self._pending = self._pending[:_BATCH], self._pending[_BATCH:]
        self._sending = [pair for pair in self._answers if pair[0] < _BATCH]
        self._answers = [(at - _BATCH, a) for at, a in self._answers if at >= _BATCH]
        self._unanswered = len(batch)
        responses = await self._responses(batch)
        self._unanswered = 0
        for at, answer in self._sending:
            if not answer.done():
                answer.set_result(responses[at])
        self._sending = []
        self._on_sent()
        if responses.count(AckResponse.SUCCESS) != len(responses):
            for settlement, response in zip(batch, responses, strict=True):
                if response is not AckResponse.SUCCESS:
                    self._on_refused(settlement, response)

    async def _responses(self, batch: list[Settlement]) -> Sequence[AckResponse]:
        """One response each, whatever happens."""
        failures = 0
        give_up_at = self._clock.monotonic() + self.patience
        while True:
            try:
                responses = await self._send(batch)
                if len(responses) != len(batch):
                    raise InternalError(
                        f"The broker answered {len(responses)} of {len(batch)} settlements"
                    )
                return responses
            except Exception as error:
                failures += 1
                delay = self.backoff.delay(failures)
                too_late = self._clock.monotonic() + delay > give_up_at
                if too_late or not getattr(error, "retryable", False):
                    self._on_error(error)
                    return [_response_to(error)] * len(batch)
            await asyncio.sleep(delay)


def _response_to(error: Exception) -> AckResponse:
    match error:
        case PermissionDeniedError():
            return AckResponse.PERMISSION_DENIED
        case InvalidArgumentError():
            return AckResponse.INVALID
        case NotFoundError() | FailedPreconditionError():
            return AckResponse.FAILED_PRECONDITION
        case _:
            return AckResponse.OTHER
