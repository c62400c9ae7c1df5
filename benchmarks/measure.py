"""Taking ratios: everything in one run, interleaved and repeated, with the spread."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Timed = Callable[[], Awaitable[float]]


@dataclass
class Figures:
    """Seconds per message of one way of doing it, over the repeats."""

    name: str
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


async def interleaved(repeats: int, **ways: Timed) -> dict[str, Figures]:
    """Run each way in turn, `repeats` times, so that a noisy moment hits all of them."""
    figures = {name: Figures(name) for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            gc.collect()
            figures[name].seconds.append(await way())
    return figures


def ratios(of: Figures, to: Figures) -> list[float]:
    """Pairwise, because neighbours in time share the machine's mood."""
    return sorted(a / b for a, b in zip(of.seconds, to.seconds, strict=True))


class Stopwatch:
    def __init__(self) -> None:
        self._began = time.perf_counter()

    def per(self, count: int) -> float:
        return (time.perf_counter() - self._began) / count


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, how it compares, and what was promised."""

    what: str
    value: str
    spread: str = ""
    promise: str = ""
    kept: bool | None = None


def ratio_row(what: str, values: list[float], most: float, cost: float) -> Row:
    middle = statistics.median(values)
    return Row(
        what=what,
        value=f"{middle:5.2f} x  ({cost * 1e6:.2f} us)",
        spread=f"{values[0]:.2f} to {values[-1]:.2f}",
        promise=f"at most {most:g} x",
        kept=middle <= most,
    )


def table(title: str, rows: list[Row]) -> None:
    print(f"\n{title}\n")
    spread = max(len(row.spread) for row in rows) + 2
    promise = max(len(row.promise) for row in rows) + 2
    for row in rows:
        mark = {True: "ok", False: "NO", None: ""}[row.kept]
        beside = f"{row.spread:<{spread}}{row.promise:<{promise}}{mark}"
        print(f"  {row.what:<46}{row.value:>22}  {beside}".rstrip())
