"""For tests of programs that use Penstock, and of brokers that serve it.

`run_virtual` runs async code in virtual time: an hour of deadlines passes in no time.
`penstock.testing.conformance` holds the behaviours every broker must show.
"""

from penstock.testing.clock import (
    HastyLoop,
    VirtualClock,
    VirtualTimeLoop,
    run_hasty,
    run_real,
    run_virtual,
)
from penstock.testing.waiting import eventually, settled

__all__ = [
    "HastyLoop",
    "VirtualClock",
    "VirtualTimeLoop",
    "eventually",
    "run_hasty",
    "run_real",
    "run_virtual",
    "settled",
]
