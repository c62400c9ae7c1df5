"""Which letters are meant. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from penstock.config import check_whole, check_zone
from penstock.dead_letters.letter import DeadLetter
from penstock.rules.filters import parse_filter


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Letters that meet all of it; what is not given is not asked for.

    `sequences`: these and no others. `reason`, `error`: with `*` for anything. `subscription`: the
    one that gave them up. `since`, `until`: when they were given up. `filter`: over the message's
    own attributes, in the filter language. `limit`: the first so many. `settled`: also those that
    were replayed or discarded.
    """

    sequences: frozenset[int] | None = None
    reason: str | None = None
    error: str | None = None
    subscription: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    filter: str = ""
    limit: int | None = None
    settled: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_whole("limit", self.limit, 1)
        for name in ("since", "until"):
            check_zone(name, getattr(self, name))
        if self.filter:
            parse_filter(self.filter)

    @property
    def everything(self) -> bool:
        """Nothing was asked for."""
        return self == Selection(settled=self.settled)

    def matcher(self) -> Callable[[DeadLetter], bool]:
        """Whether a letter is meant; `limit` is for whoever counts."""
        by_attributes = parse_filter(self.filter).matches if self.filter else None

        def matches(letter: DeadLetter) -> bool:
            return (
                (self.settled or letter.settled is None)
                and (self.sequences is None or letter.sequence in self.sequences)
                and _like(letter.reason, self.reason)
                and _like(letter.error or "", self.error)
                and self.subscription in (None, letter.origin.subscription)
                and (self.since is None or letter.time >= self.since)
                and (self.until is None or letter.time < self.until)
                and (by_attributes is None or by_attributes(letter.attributes))
            )

        return matches


def _like(text: str, pattern: str | None) -> bool:
    return pattern is None or fnmatchcase(text, pattern)
