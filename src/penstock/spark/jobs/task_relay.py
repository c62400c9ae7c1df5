"""The relay of a task: what its jobs say is sent by those who committed it, side by side."""

from __future__ import annotations

import logging

from penstock.client import PubSub
from penstock.errors import PenstockError
from penstock.jobs.telemetry import JobObserver, as_relay_observer
from penstock.transactional import Database, Relay

_log = logging.getLogger("penstock.jobs")
# Seconds that rows wait when their task was killed before it had sent them; then the driver's relay
# has them.
_LEASE = 10.0


class TaskRelay:
    """Sends what is added to its `outbox`, once it is committed. What others commit is theirs.

    What cannot be sent now stays in the database, for the driver's relay: the task's work is done.
    Closing `pubsub` is its owner's.
    """

    def __init__(self, pubsub: PubSub, database: Database, observer: JobObserver) -> None:
        observe = as_relay_observer(observer)
        self._relay = Relay(database, pubsub, lease=_LEASE, observe=observe)
        self.outbox = self._relay.held_outbox()

    async def send(self) -> None:
        """Send what was committed since it was last called. One call at a time."""
        try:
            await self._relay.send_held()
        except PenstockError as error:
            _log.warning("What a task committed is left to the driver's relay: %s", error)
