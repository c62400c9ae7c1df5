"""Whether jobs can be taken, and what is in the way."""

from __future__ import annotations

import asyncio
import logging

from penstock.errors import PenstockError, UnavailableError
from penstock.jobs.messaging.keeping import missing
from penstock.jobs.system import JobSystem
from penstock.retrying import Outage

_log = logging.getLogger("penstock.web")
# Seconds for each part: probes do not wait long, and what they are told too late is no use.
_WITHIN = 2.0


class Health:
    def __init__(self, system: JobSystem) -> None:
        self._system = system
        self._parts = {"database": self._look_at_database, "broker": self._look_at_broker}
        self._outages = {
            part: Outage(_log, f"The {part} cannot be reached") for part in self._parts
        }

    async def check(self) -> None:
        """`UnavailableError` that says which part is away, or what is missing."""
        gone: list[str] = []
        for part, look in self._parts.items():
            try:
                async with asyncio.timeout(_WITHIN):
                    gone += await look()
            except (PenstockError, TimeoutError) as error:
                # Where it is, is for those who run it, not for whoever asks.
                self._outages[part].met(error)
                raise UnavailableError(
                    f"The {part} cannot be reached; is it running? The log of the API says more"
                ) from error
            self._outages[part].over()
        if gone:
            raise UnavailableError(f"Missing: {', '.join(gone)}; it is made again in a moment")

    async def _look_at_database(self) -> list[str]:
        await self._system.database.ping()
        return []

    async def _look_at_broker(self) -> list[str]:
        await (await self._system.pubsub.broker()).ping()
        return await missing(self._system.client)
