"""The broker of `local://DIR`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from shlex import quote
from typing import TypeVar

from penstock.brokers.nats.broker import NatsBroker
from penstock.brokers.nats.local.folder import LocalServer, folder_of
from penstock.clock import Clock
from penstock.errors import UnavailableError
from penstock.retrying import Persistence, always, retry
from penstock.rules.backoff import Backoff

T = TypeVar("T")
_log = logging.getLogger("penstock")
# Its few users are on this machine, and need not be kept from coming all at once.
_NEARBY = Backoff(initial=0.05, maximum=0.5)
_UNTIL_IT_RUNS = Persistence(backoff=Backoff(initial=0.1, maximum=5.0), worth_it=always)


class LocalBroker(NatsBroker):
    """JetStream on a server of our own. When that dies, whoever uses it starts it again."""

    server: LocalServer
    _restoring: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, url: str, clock: Clock) -> LocalBroker:
        local = LocalServer(folder_of(url))
        try:
            state = await _in_thread(local, local.enter)
            broker = await cls.connect(f"{state.address}?group_commit=1", clock)
        except BaseException:
            await asyncio.to_thread(local.leave)
            raise
        broker.server = local
        broker._connection.backoff = _NEARBY
        broker._connection.wire.on_loss(broker._on_loss)
        return broker

    async def aclose(self) -> None:
        try:
            await super().aclose()
            if self._restoring is not None:
                self._restoring.cancel()
                await asyncio.wait({self._restoring})
        finally:
            await asyncio.to_thread(self.server.leave)

    def _on_loss(self) -> None:
        idle = self._restoring is None or self._restoring.done()
        if idle and not self._connection.wire.closed:
            # Ended by `aclose`.
            self._restoring = asyncio.ensure_future(self._restore())

    async def _restore(self) -> None:
        """Until there is a connection again, see to it that there is a server."""
        wire = self._connection.wire
        while not wire.connected:
            await retry(self._revive, _UNTIL_IT_RUNS, on_failure=self._say)
            with suppress(UnavailableError):
                await wire.until_connected()

    async def _revive(self) -> None:
        state = await _in_thread(self.server, self.server.revive)
        if state is None:
            raise UnavailableError(
                f"The NATS server in {self.server.directory} was stopped; it is used again when "
                f"somebody starts it, as: penstock server start {quote(str(self.server.directory))}"
            )
        self._connection.lead_to(state.address)

    def _say(self, error: Exception, pause: float) -> None:
        _log.warning("%s; looking again in %.1f s", error, pause)


async def _in_thread(local: LocalServer, act: Callable[[], T]) -> T:
    """What `act` returns. A thread cannot be cancelled: it is told to give up, and waited for, so
    that whatever it started is known."""
    acting = asyncio.ensure_future(asyncio.to_thread(act))
    try:
        return await asyncio.shield(acting)
    except asyncio.CancelledError:
        local.give_up()
        await asyncio.wait({acting})
        if not acting.cancelled():
            acting.exception()  # Seen: nobody waits for it.
        raise
