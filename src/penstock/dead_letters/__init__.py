"""Messages that were given up: how they are written down, found again, replayed and discarded."""

from penstock.dead_letters.letter import DeadLetter, Origin
from penstock.dead_letters.letters import DeadLetters, Replay
from penstock.dead_letters.selection import Selection

__all__ = ["DeadLetter", "DeadLetters", "Origin", "Replay", "Selection"]
