"""`make bench`: prints tables; ends with 1 when something promised was not kept."""

from __future__ import annotations

import asyncio
import sys

from benchmarks import memory_broker

if __name__ == "__main__":
    sys.exit(0 if asyncio.run(memory_broker.main()) else 1)
