"""Names of the subjects that acks of what was published come back on."""

from __future__ import annotations

import itertools

# Seconds for which everything must have been answered once before names serve again. If somebody
# answers twice, that is seen of the names before so much earlier than it can do harm.
TRIAL = 1.0


class ReplyNames:
    """New names, or those whose acks are all here. Pure; time is an argument.

    A server looks up where an ack goes for each subject that is new to it, a fifth of what it does
    for a message. But on a subject that serves again, an answer too many is another message's, and
    a message that is not stored would be taken for stored. Two leaders of a cluster may both ack a
    message, as may streams on both sides of a leaf node; and whoever listens on a topic's subject
    may answer as well. So names serve again only while nothing of that was ever seen.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._answered: list[bytes] = []
        self._once_since: float | None = None

    def new(self) -> bytes:
        return b"%d" % next(self._numbers)

    def next(self) -> bytes:
        return self._answered.pop() if self._answered else self.new()

    def answered(self, name: bytes, now: float) -> None:
        """All that was sent under this name was acked, and nothing twice."""
        if self._once_since is None:
            self._once_since = now
        elif now - self._once_since >= TRIAL:
            self._answered.append(name)

    def doubt(self) -> None:
        """An answer came that nobody waits for, or there is another connection."""
        self._answered.clear()
        self._once_since = None
