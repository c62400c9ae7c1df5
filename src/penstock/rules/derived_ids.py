"""Ids that follow from what a message came from, so that doing it again makes the same message."""

from __future__ import annotations

import hashlib

# Far below what brokers allow, so that ids derived from derived ids stay readable for a while.
_LONGEST = 256


def derived_id(*parts: str | int) -> str:
    """The parts joined by slashes; a digest of them when that is long.

    Different parts give different ids: a slash inside a part is escaped.
    """
    text = "/".join(str(part).replace("%", "%25").replace("/", "%2F") for part in parts)
    if len(text.encode()) <= _LONGEST:
        return text
    return f"{str(parts[0])[:32]}/{hashlib.sha256(text.encode()).hexdigest()}"


def sequence_id(topic: str, sequence: int, published_ns: int) -> str:
    """What a message without an id is known by: where its topic has it, and since when, because a
    topic that was made again counts from 1 again."""
    return f"seq:{topic}:{sequence}:{published_ns}"
