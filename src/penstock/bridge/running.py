"""What a started bridge has open, in one process and on one event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from penstock.broker import Capabilities
from penstock.client import PubSub
from penstock.errors import PenstockError, UnavailableError

if TYPE_CHECKING:
    from penstock.transactional import Database, Inbox, Relay
    from penstock.transactional.commit_signals import CommitSignals


class CurrentBroker:
    """The broker of the moment, for a relay that outlives a connection and may come before it."""

    # Whatever is asked is passed on; the broker of the moment is checked then.
    capabilities = Capabilities(expectations=True, ttl=True)

    def __init__(
        self, pubsub: Callable[[], Awaitable[PubSub]], publish: Callable[..., Awaitable[Any]]
    ) -> None:
        self._pubsub = pubsub
        self._publish = publish

    async def publish(self, topic: str, drafts: Any) -> Any:
        try:
            pubsub = await self._pubsub()
        except PenstockError as error:
            # About the bridge, which cannot start, and not about these drafts: they wait.
            raise UnavailableError(f"The bridge is not ready: {error}") from error
        return await self._publish(await pubsub.broker(), topic, drafts)


class Running:
    """What a bridge has open in one process and on one event loop."""

    def __init__(self, *, pid: int, loop: asyncio.AbstractEventLoop) -> None:
        self._pid = pid
        self.loop = loop
        self.database: Database | None = None
        self.inbox: Inbox | None = None
        self.relay: Relay | None = None
        self.signals: CommitSignals | None = None
        self.provisioned = False

    def is_of_this_process(self) -> bool:
        return self._pid == os.getpid()

    def is_ours(self) -> bool:
        return self.is_of_this_process() and self.loop is asyncio.get_running_loop()

    async def aclose(self) -> None:
        if self.signals is not None:
            await self.signals.aclose()
        if self.relay is not None:
            await self.relay.aclose()
        if self.database is not None:
            await self.database.aclose()
