"""`make bench`: every ratio that Penstock promises. Ends with 1 when one is not kept.

`python -m benchmarks NAME…` runs some parts only.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

PARTS = (
    "memory_broker",
    "jetstream",
    "jetstream_latency",
    "google",
    "apps",
    "outbox",
    "bridge",
    "jobs",
    "transcription",
    "spark",
    "pipeline",
)


async def main(names: list[str]) -> bool:
    kept = True
    for name in names or PARTS:
        if name not in PARTS:
            sys.exit(f"No benchmark {name!r}; there are {', '.join(PARTS)}")
        kept &= await import_module(f"benchmarks.{name}").main()
    return kept


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main(sys.argv[1:])) else 1)
