"""The broker of `local://DIR`."""

from __future__ import annotations

import asyncio

from penstock.brokers.nats.broker import NatsBroker
from penstock.brokers.nats.local.folder import LocalServer, folder_of
from penstock.clock import Clock


class LocalBroker(NatsBroker):
    """JetStream on a server of our own."""

    server: LocalServer

    @classmethod
    async def open(cls, url: str, clock: Clock) -> LocalBroker:
        local = LocalServer(folder_of(url))
        entering = asyncio.ensure_future(asyncio.to_thread(local.enter))
        try:
            state = await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The thread goes on; what it starts must not be left behind.
            await asyncio.wait({entering})
            await asyncio.to_thread(local.leave)
            raise
        try:
            broker = await cls.connect(f"{state.address}?group_commit=1", clock)
        except BaseException:
            await asyncio.to_thread(local.leave)
            raise
        broker.server = local
        return broker

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            await asyncio.to_thread(self.server.leave)
