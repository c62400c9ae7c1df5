"""Messages side by side: what a range of a log is read into, without an object per message."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence

_NONE: Mapping[str, str] = {}
_DENSE = ("sequences", "ids", "subjects", "published_us", "data")
_SPARSE = ("keys", "attributes", "headers")


class Columns:
    """Messages of one topic, in the order of their sequences.

    Every message has a place in the lists. What few messages have is kept by row: `keys` are
    ordering keys; `headers` is everything that was stored beside the data, in the broker's own
    words, and is filled only when asked for. `ids` and `subjects` are text in UTF-8 as it arrived;
    not everybody who publishes keeps to that.
    """

    __slots__ = (*_DENSE, *_SPARSE)

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.ids: list[bytes] = []
        self.subjects: list[bytes] = []
        self.published_us: list[int] = []
        """Microseconds since the epoch."""
        self.data: list[bytes] = []
        self.keys: dict[int, str] = {}
        self.attributes: dict[int, dict[str, str]] = {}
        self.headers: dict[int, dict[str, str]] = {}

    def __len__(self) -> int:
        return len(self.sequences)

    def extend(self, other: Columns) -> None:
        """Put another's rows after ours."""
        at = len(self)
        for name in _DENSE:
            getattr(self, name).extend(getattr(other, name))
        for name in _SPARSE:
            found = getattr(other, name)
            getattr(self, name).update((at + row, value) for row, value in found.items())

    def select(self, rows: Sequence[int]) -> Columns:
        """Only these rows, in this order."""
        kept = Columns()
        for name in _DENSE:
            column = getattr(self, name)
            setattr(kept, name, [column[row] for row in rows])
        for name in _SPARSE:
            found = getattr(self, name)
            if found:
                setattr(kept, name, {n: found[row] for n, row in enumerate(rows) if row in found})
        return kept

    def matching(self, matches: Callable[[Mapping[str, str]], bool]) -> Columns:
        """The rows whose attributes match."""
        found = self.attributes
        rows = [row for row in range(len(self)) if matches(found.get(row, _NONE))]
        return self if len(rows) == len(self) else self.select(rows)

    def cut(self, last: int) -> tuple[Columns, Columns]:
        """The rows up to a sequence, included, and those beyond it."""
        at = bisect_right(self.sequences, last)
        if at == len(self):
            return self, Columns()
        return self.select(range(at)), self.select(range(at, len(self)))


def merged(sources: Sequence[Iterator[Columns]]) -> Iterator[Columns]:
    """Several parts of one range, that have no message in common, in the order of sequences."""
    held = [(first, source) for source in sources if (first := next(source, None))]
    while len(held) > 1:
        # Up to here everybody has said all there is.
        bound = min(columns.sequences[-1] for columns, _ in held)
        ready, later = Columns(), []
        for columns, source in held:
            low, high = columns.cut(bound)
            ready.extend(low)
            rest = high or next(source, None)
            if rest:
                later.append((rest, source))
        held = later
        yield ready.select(sorted(range(len(ready)), key=ready.sequences.__getitem__))
    for columns, source in held:
        yield columns
        yield from source
