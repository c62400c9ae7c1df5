"""A passing consumer: how a long range of a stream is read.

A server spends 6 microseconds on a message that it hands out directly and less than 2 on one that
it sends to a consumer. The consumer is made for one range, lives in memory, acks nothing and is
deleted after it; if its reader dies, the server forgets it. Only for streams that keep messages by
age or size: elsewhere a consumer changes what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.clock import NS

# Making and deleting a consumer takes about as long as reading this many messages directly.
WORTH_A_CONSUMER = 1_000
_IDLE = 30


def passing_consumer(stream: str, first: int, subjects: Sequence[str] = ()) -> dict[str, Any]:
    """The request that makes one, which begins at a sequence; `subjects`: only what is on these."""
    config: dict[str, Any] = {
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": first,
        "ack_policy": "none",
        "inactive_threshold": _IDLE * NS,
        "mem_storage": True,
        "num_replicas": 1,
    }
    if subjects:
        config["filter_subjects"] = list(subjects)
    return {"stream_name": stream, "config": config}
