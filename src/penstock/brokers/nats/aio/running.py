"""When the event loop has been running, for those who have to know how late they hear of things."""

from __future__ import annotations

import asyncio
from collections import deque

_EVERY = 0.5
# A loop that is later than this stood still: a function did not return, or the process was stopped.
_STOOD_STILL = 2 * _EVERY
_MOST = 64


class Running:
    """Looks at the time now and then, once somebody has asked for it."""

    def __init__(self) -> None:
        self._moments: deque[float] = deque(maxlen=_MOST)
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Safe to call again."""
        if self._timer is None:
            self._look()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._moments.append(loop.time())
        self._timer = loop.call_later(_EVERY, self._look)

    def before(self, seconds: float) -> float:
        """A moment so many seconds before now, not counting those in which the loop stood still:
        what is heard of now may have happened when that began."""
        at = asyncio.get_running_loop().time()
        for moment in reversed(self._moments):
            ran = at - moment
            if ran <= _STOOD_STILL:
                if ran >= seconds:
                    return at - seconds
                seconds -= ran
            at = moment
        return at - seconds
