"""`make bench`: prints tables; ends with 1 when something promised was not kept."""

from __future__ import annotations

import asyncio
import sys

from benchmarks import jetstream, memory_broker, spark


async def main() -> bool:
    return all([await memory_broker.main(), await jetstream.main(), await spark.main()])


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
