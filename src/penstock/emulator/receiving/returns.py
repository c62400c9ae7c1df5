"""What goes back to the broker when the client it was lent to is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from penstock.broker import Broker
from penstock.errors import PenstockError
from penstock.message import Settlement, Verb

_log = logging.getLogger("penstock")


class Returns:
    """Whoever gives something back is on its way out and cannot wait: it is done here."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._under_way: set[asyncio.Task[None]] = set()

    def give_back(self, subscription: str, ack_ids: Sequence[str]) -> None:
        """What a client never touched goes to the next one at once. What it extended it has, and
        may yet ack with a call of its own."""
        if ack_ids:
            # One a client that left; `settled` waits for it.
            task = asyncio.get_running_loop().create_task(self._release(subscription, ack_ids))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def settled(self) -> None:
        """Return once nothing is on its way any more."""
        await asyncio.gather(*self._under_way)

    async def _release(self, subscription: str, ack_ids: Sequence[str]) -> None:
        releases = [Settlement(ack_id, Verb.RELEASE) for ack_id in ack_ids]
        try:
            await self._broker.settle(subscription, releases)
        except PenstockError as error:
            _log.warning(
                "Subscription %r: what a client left comes back late: %s", subscription, error
            )
