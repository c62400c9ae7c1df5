"""Waiting for answers, when nobody could look for them until the time was up. Pure."""

# A loop that is later than this stood still: a function did not return, or the process was stopped.
_STOOD_STILL = 0.01
# What came meanwhile waits to be read, which takes some turns of the loop.
_TO_READ = 0.5


def time_to_read(until: float, now: float) -> float:
    """Seconds by which a wait that was to end at `until` is to go on, once, when it is looked at
    only `now`; 0 when that is in time, and nothing that came can have been missed."""
    return _TO_READ if now - until >= _STOOD_STILL else 0.0
