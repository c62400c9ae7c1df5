"""Waiting until nothing more is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.brokers.nats.aio.wire import LEAVES_WITHIN
from penstock.brokers.nats.protocol.records import is_last

# When nothing followed what has come for so long, nothing is under way.
QUIET = 0.05


class Quiet:
    """Knows whether more may follow at once. Of what the server sends when there is no interest
    nobody hears, and it has cost an attempt; so whoever leaves waits for this before."""

    def __init__(self) -> None:
        self._since = 0.0

    def disturbed(self) -> None:
        """Something was asked for or given back that may come at once."""
        self._since = asyncio.get_running_loop().time()

    def came(self, reply: bytes) -> None:
        """A delivery, and perhaps others behind it."""
        if is_last(reply):
            self._since = 0.0
        else:
            self.disturbed()

    async def wait(self, while_wanted: Callable[[], bool]) -> None:
        """Not for long: some never stop."""
        now = asyncio.get_running_loop().time
        until = now() + LEAVES_WITHIN
        while while_wanted():
            quiet_at = min(self._since + QUIET, until)
            if now() >= quiet_at:
                return
            await asyncio.sleep(quiet_at - now())
