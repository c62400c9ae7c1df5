"""How far a query is behind, out of what Spark says of its progress."""

from __future__ import annotations

import json
from typing import Any


def offsets_behind(progress: Any) -> dict[str, int]:
    """Messages of each topic that were there and not in the batch, by a query's `lastProgress`;
    none before it has any.

    What Kafka's source says in `metrics`; Spark 4.3 asks no Python source for any.
    """
    found: dict[str, int] = {}
    for source in () if progress is None else progress["sources"]:
        end, latest = offsets_of(source["endOffset"]), offsets_of(source["latestOffset"])
        for topic, at in latest.items():
            found[topic] = found.get(topic, 0) + max(0, at - end.get(topic, 0))
    return found


def offsets_of(value: Any) -> dict[str, int]:
    """Offsets as Spark has them: JSON, or what it says; none for what is something else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, dict):
        return {}
    return {str(topic): int(at) for topic, at in value.items() if str(at).isdigit()}
