"""The relay of a task: what its jobs say is sent by those who committed it, side by side."""

from __future__ import annotations

import logging

from penstock.client import PubSub
from penstock.errors import PenstockError
from penstock.jobs.telemetry import JobObserver, subject_of
from penstock.message import Draft
from penstock.transactional import Outbox, Relay

_log = logging.getLogger("penstock.jobs")
_TOGETHER = 2000
# Seconds that rows wait when their task was killed while it sent them; then the driver's relay has
# them.
_LEASE = 10.0


class TaskRelay:
    """Sends what is in the outbox, when a task has committed something.

    What cannot be sent now stays there, for the driver's relay: the task's work is done. Closing
    `pubsub` is its owner's.
    """

    def __init__(self, pubsub: PubSub, outbox: Outbox, observer: JobObserver) -> None:
        def observe(topic: str, draft: Draft, seconds: float, error: PenstockError | None) -> None:
            # One line a message is for those who look for something.
            if error is not None or _log.isEnabledFor(logging.DEBUG):
                observer.published(subject_of(draft.attributes, 1), topic, seconds, error)

        self._relay = Relay(
            outbox.database, pubsub, outbox=outbox, batch=_TOGETHER, lease=_LEASE, observe=observe
        )

    async def send(self, messages: int) -> None:
        """Send until nothing is left, or about as many as a task with so many messages adds: what
        others committed meanwhile is for them."""
        sent = 0
        try:
            while sent <= 2 * messages and (claimed := await self._relay.step()):
                sent += claimed
        except PenstockError as error:
            _log.warning("What a task committed is left to the driver's relay: %s", error)
