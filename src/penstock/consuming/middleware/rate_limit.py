"""No more than so many a second."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.config import check_whole
from penstock.consuming.declaration import Middleware
from penstock.consuming.middleware.chain import Call, Next
from penstock.consuming.middleware.per_loop import PerLoop
from penstock.errors import InvalidArgumentError

_FASTEST = 1_000_000_000


class Pace:
    """Whose turn is when. Pure: time comes in as an argument.

    `burst` may go at once after a rest; from then on one each `1 / per_second` seconds.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._interval = 1.0 / per_second
        self._ahead = (burst - 1) * self._interval
        self._next = float("-inf")

    def turn(self, arrived: float) -> float:
        """When whoever arrived then, and is the first to wait, may go."""
        return max(self._next, arrived - self._ahead)

    def take(self, now: float, count: int = 1) -> float:
        """Seconds to wait for the turn that was taken now."""
        turn = self.turn(now)
        self._next = turn + count * self._interval
        return max(0.0, turn - now)


def rate_limit(per_second: float, *, burst: int = 1) -> Middleware:
    """Messages wait for their turn, in order of arrival. One limit for all handlers it is around,
    in this process; messages that wait are ours, so no more are fetched than the window holds."""
    is_number = isinstance(per_second, int | float) and not isinstance(per_second, bool)
    if not is_number or not 0 < per_second <= _FASTEST:
        raise InvalidArgumentError(
            f"per_second must be a number above 0 and at most {_FASTEST:,}, not {per_second!r}"
        )
    check_whole("burst", burst, 1)
    pace = Pace(per_second, burst)
    line = PerLoop(asyncio.Lock)

    async def paced(call: Call, next: Next) -> Any:
        clock = asyncio.get_running_loop().time
        arrived = clock()
        # The turn is taken when it has come: who is cancelled in the line has used none up.
        async with line.here():
            wait = pace.turn(arrived) - clock()
            if wait > 0:
                await asyncio.sleep(wait)
            pace.take(arrived, len(call.messages))
        return await next(call)

    return paced
