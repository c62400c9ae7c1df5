"""Whether jobs can be taken, and what is in the way."""

from __future__ import annotations

import logging

from penstock.errors import PenstockError, UnavailableError
from penstock.jobs.messaging.keeping import missing
from penstock.jobs.system import JobSystem
from penstock.retrying import Outage

_log = logging.getLogger("penstock.web")


class Health:
    def __init__(self, system: JobSystem) -> None:
        self._system = system
        self._parts = {"database": self._ping_database, "broker": self._ping_broker}
        self._outages = {
            part: Outage(_log, f"The {part} cannot be reached") for part in self._parts
        }

    async def check(self) -> None:
        """`UnavailableError` that says which part is away, or what is missing."""
        for part, ping in self._parts.items():
            try:
                await ping()
            except PenstockError as error:
                # Where it is, is for those who run it, not for whoever asks.
                self._outages[part].met(error)
                raise UnavailableError(
                    f"The {part} cannot be reached; is it running? The log of the API says more"
                ) from error
            self._outages[part].over()
        gone = await missing(self._system.client)
        if gone:
            raise UnavailableError(f"Missing: {', '.join(gone)}; it is made again in a moment")

    async def _ping_database(self) -> None:
        await self._system.database.ping()

    async def _ping_broker(self) -> None:
        await (await self._system.pubsub.broker()).ping()
