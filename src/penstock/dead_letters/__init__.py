"""Messages that were given up: how they are written down, found again, replayed and discarded."""

from penstock.dead_letters.letter import DeadLetter, Origin

__all__ = ["DeadLetter", "Origin"]
