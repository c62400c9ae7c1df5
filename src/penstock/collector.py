"""The garbage collector, in processes that are Penstock's own: of a command, of a Spark task.

Messages and jobs come and go by the thousand and are freed by counting; what the collector finds
among them is next to nothing, and what it looks through is everything that is loaded. A library
leaves this to its host, so nothing here is called by what others import.
"""

from __future__ import annotations

import gc
from functools import cache

# Objects made and not freed before it looks: more than a group of jobs in the making has.
_LOOK_AFTER = 10_000


@cache
def keep_what_is_loaded() -> None:
    """Let the collector leave alone what is there by now: modules, models, tools. Once a process,
    because a second time would keep what is garbage soon."""
    gc.collect()
    gc.freeze()


def look_rarely() -> None:
    """For a process that goes on for long: besides, it looks a tenth as often."""
    keep_what_is_loaded()
    gc.set_threshold(_LOOK_AFTER, *gc.get_threshold()[1:])
