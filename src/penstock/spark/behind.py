"""How far a query is behind, out of what Spark says of its progress."""

from __future__ import annotations

import json
from typing import Any

from penstock.spark.source.offsets import IDENTITY, Place


def offsets_behind(progress: Any) -> dict[str, int]:
    """Messages of each topic that were there and not in the batch, by a query's `lastProgress`;
    none before it has any, and none where it reads through a spool: segments say nothing of how
    many messages wait.

    What Kafka's source says in `metrics`; Spark 4.3 asks no Python source for any.
    """
    found: dict[str, int] = {}
    for source in () if progress is None else progress["sources"]:
        end, latest = offsets_of(source["endOffset"]), offsets_of(source["latestOffset"])
        if _is_spooled(source["endOffset"]):
            continue
        for topic, at in latest.items():
            found[topic] = found.get(topic, 0) + max(0, at - end.get(topic, 0))
    return found


def offsets_of(value: Any) -> dict[str, int]:
    """Offsets as Spark has them: JSON, or what it says; none for what is something else."""
    return {str(topic): int(at) for topic, at in _parsed(value).items() if str(at).isdigit()}


def together(*values: Any) -> dict[str, Any]:
    """The offsets of several sources as those of one, and which topics they count in, where they
    say it."""
    at: dict[str, int] = {}
    identities: dict[str, str] = {}
    for value in values:
        at |= offsets_of(value)
        said = _parsed(value).get(IDENTITY)
        identities |= said if isinstance(said, dict) else {}
    return Place(at, identities).to_json()


def _is_spooled(value: Any) -> bool:
    """They are of a spool. A topic that is called so says which topic it is as well."""
    return _parsed(value).keys() == {"segment"}


def _parsed(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}
