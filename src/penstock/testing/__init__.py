"""For tests of programs that use Penstock, and of brokers that serve it.

`run_virtual` runs async code in virtual time: an hour of deadlines passes in no time.
`make_message` makes messages for tests of handlers, `TestApp` runs an app in memory.
`penstock.testing.conformance` holds the behaviours every broker must show.
"""

from penstock.testing.app import TestApp
from penstock.testing.clock import (
    HastyLoop,
    VirtualClock,
    VirtualTimeLoop,
    run_hasty,
    run_real,
    run_virtual,
)
from penstock.testing.messages import MadeMessage, make_message
from penstock.testing.waiting import eventually, settled

__all__ = [
    "HastyLoop",
    "MadeMessage",
    "TestApp",
    "VirtualClock",
    "VirtualTimeLoop",
    "eventually",
    "make_message",
    "run_hasty",
    "run_real",
    "run_virtual",
    "settled",
]
