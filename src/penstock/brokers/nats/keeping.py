"""Until when what was fetched ahead is ours, as far as the server is known to have said so. Pure.

Counted from before the server can have lent or renewed something, never from when that came: it
may have been under way for long, because the connection stood still or we did.
"""

from __future__ import annotations


class Keeping:
    """What one queue of fetched messages knows of their leases. Time is an argument."""

    __slots__ = (
        "_came",
        "_doubts",
        "_kept_until",
        "_lent_after",
        "_renewed_at",
        "_unanswered",
        "doubtful",
    )

    def __init__(self) -> None:
        self._lent_after = 0.0
        self._kept_until = 0.0
        self._unanswered = False
        # By sequence, of what came since the last renewal or not long before.
        self._came: dict[int, float] = {}
        self._renewed_at = 0.0
        self._doubts = 0
        self.doubtful = False
        """What comes may have been sent before the server heard of us again."""

    def is_kept(self, now: float) -> bool:
        """What is here is ours, for all we know."""
        return now < self._kept_until

    def shorten(self, seconds: float) -> None:
        """What is here is ours for so much less."""
        self._kept_until -= seconds

    # Requests.

    def asking(self, now: float) -> None:
        """A request is about to be sent; what comes may be for one before that was not answered."""
        if not self._unanswered:
            self._lent_after = now

    def asked(self) -> None:
        self._unanswered = True

    def answered(self) -> None:
        """It has ended, or never will be answered."""
        self._unanswered = False

    def arrived(self, sequence: int, now: float, deadline: float, *, first: bool) -> bool:
        """Something came that is lent for so many seconds, the `first` that is here; False: it may
        be another's by now."""
        ends = self._lent_after + deadline
        if self.doubtful or now >= ends:
            return False
        self._kept_until = ends if first else min(self._kept_until, ends)
        self._came[sequence] = now
        return True

    def waited(self, sequences: list[int], since: float) -> set[int]:
        """Which of these, that are taken now, came or were renewed before."""
        return {s for s in sequences if max(self._came.pop(s, 0.0), self._renewed_at) < since}

    def came_since(self, moment: float) -> set[int]:
        """What has come since, of what is here."""
        return {sequence for sequence, at in self._came.items() if at >= moment}

    # Renewals.

    def renewing(self, now: float, *, forget_before: float) -> tuple[float, int]:
        """All that is here is about to be renewed; what to say when the server has read that. What
        came before a moment need not be told by `came_since`."""
        self._came = {s: at for s, at in self._came.items() if at >= forget_before}
        self._renewed_at = now
        # What comes meanwhile may have been lent since it was asked for.
        since = min(now, self._lent_after) if self._unanswered else now
        return since, self._doubts

    def renewed(self, renewal: tuple[float, int], deadline: float) -> None:
        since, doubts = renewal
        if doubts == self._doubts:
            self._kept_until = since + deadline

    # Doubts.

    def doubt(self) -> None:
        """What is here was not renewed in time, or what comes was under way for too long."""
        self._doubts += 1
        self.doubtful = True

    def hearing(self, now: float) -> tuple[float, int]:
        """The server is about to be asked something; what to say when it has answered: whatever it
        had sent before has come by then."""
        return now, self._doubts

    def heard(self, question: tuple[float, int]) -> None:
        asked, doubts = question
        if doubts == self._doubts:
            self.doubtful = False
            self._lent_after = max(self._lent_after, asked)
