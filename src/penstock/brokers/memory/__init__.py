"""The in-process broker: the reference for what every other broker should do."""

from penstock.brokers.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
