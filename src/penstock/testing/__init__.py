"""For tests of programs that use Penstock, and of brokers that serve it.

`run_virtual` runs async code in virtual time: an hour of deadlines passes in no time.
`TestApp` runs an app in memory. `penstock.testing.conformance` holds the behaviours every broker
must show.
"""

from penstock.testing.app import TestApp
from penstock.testing.clock import VirtualClock, VirtualTimeLoop, run_real, run_virtual
from penstock.testing.waiting import eventually, settled

__all__ = [
    "TestApp",
    "VirtualClock",
    "VirtualTimeLoop",
    "eventually",
    "run_real",
    "run_virtual",
    "settled",
]
