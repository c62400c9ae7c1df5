"""Settlements of one call that come too late: an earlier one has ended their delivery. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import Settlement, Verb


def repeats(settlements: Sequence[Settlement]) -> frozenset[int]:
    """The places of those. Extending ends nothing, so what follows it is none of them."""
    if len({settlement.ack_id for settlement in settlements}) == len(settlements):
        return frozenset()  # So it nearly always is.
    ended: set[str] = set()
    found: set[int] = set()
    for at, settlement in enumerate(settlements):
        if settlement.ack_id in ended:
            found.add(at)
        elif settlement.verb is not Verb.EXTEND or not settlement.seconds:
            ended.add(settlement.ack_id)
    return frozenset(found)
