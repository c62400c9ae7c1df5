"""Processor time of many processes: it is told rightly by a machine that has other work, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    parent: int
    seconds: float
    command: str


def spent(folder: str) -> float:
    """Seconds that this process, all it started, and whoever was started for `folder` have used."""
    found = {number: process for number in _numbers() if (process := _read(number)) is not None}
    ours = {number for number, one in found.items() if folder in one.command} | {os.getpid()}
    before = 0
    while len(ours) > before:
        before = len(ours)
        ours |= {number for number, one in found.items() if one.parent in ours}
    return sum(found[number].seconds for number in ours if number in found)


def spent_by(number: int) -> float:
    """Seconds that one process has used."""
    process = _read(number)
    return 0.0 if process is None else process.seconds


def _numbers() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read(number: int) -> _Process | None:
    try:
        told = Path(f"/proc/{number}/stat").read_text()
        command = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    fields = told.rpartition(")")[2].split()
    return _Process(int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS, command)
