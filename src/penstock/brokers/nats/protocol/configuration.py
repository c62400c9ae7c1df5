"""Topics as streams: their configurations, both ways, and what a stream says of itself."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.broker import Extent
from penstock.brokers.nats.protocol.headers import encode_name, own_name
from penstock.clock import NS
from penstock.config import DAY, TopicConfig
from penstock.errors import FailedPreconditionError

MARK = "penstock"
_KEEP_AT_LEAST = 7 * DAY
_KEEP_MARKS = 31 * DAY
REPLICAS = 3
"""Copies of what a cluster stores: one server of three may be lost. More cost more and allow for
two, which nobody needs who did not ask."""


def stream_config(config: TopicConfig) -> dict[str, Any]:
    """A topic as a stream: kept by age, in a file, read by anybody who may."""
    keep = _kept_for(config.message_retention, config.work_queue)
    return {
        "name": encode_name(config.name),
        "subjects": list(config.subjects) or own_subjects(config.name),
        "retention": "workqueue" if config.work_queue else "limits",
        "storage": "file",
        "discard": "old",
        "max_age": int(keep * NS),
        "duplicate_window": int(_window(config.duplicate_window, keep) * NS),
        "allow_direct": True,
        "allow_atomic": True,
        "allow_msg_ttl": True,
        **({"num_replicas": config.replicas} if config.replicas is not None else {}),
        "metadata": {
            MARK: msgspec.json.encode(
                {
                    "retention": config.message_retention,
                    "duplicates": config.duplicate_window,
                    "routed": config.routed_attributes,
                }
            ).decode()
        },
    }


def _kept_for(retention: float, work_queue: bool) -> float:
    """Seconds; 0: for ever. So waits what waits in a work queue, unless somebody says otherwise."""
    return retention or (0.0 if work_queue else _KEEP_AT_LEAST)


def _window(duplicates: float, keep: float) -> float:
    """The server wants one, and none that is longer than it keeps messages."""
    return min(duplicates, keep or duplicates) or 0.1


def own_subjects(topic: str) -> list[str]:
    return [topic, f"{topic}.>"]


def updated_stream(info: dict[str, Any], config: TopicConfig) -> dict[str, Any]:
    """A stream as it is, but for what of a topic's configuration is new: what is not ours, and what
    a topic cannot say exactly, stays."""
    now, before, wanted = info["config"], stream_config(topic_config(info)), stream_config(config)
    keys = ("max_age", "duplicate_window", "subjects", "num_replicas")
    changed = {key: wanted[key] for key in keys if wanted.get(key, before[key]) != before[key]}
    if wanted["metadata"] != before["metadata"]:
        changed["metadata"] = {**(now.get("metadata") or {}), **wanted["metadata"]}
    return {**now, **changed}


def marks_config(topic: str) -> dict[str, Any]:
    """A stream of marks: the last on each subject. One that nobody has touched for a month belongs
    to nobody."""
    return {
        "name": encode_name(topic),
        "subjects": [topic, f"{topic}.>"],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_msgs_per_subject": 1,
        "max_age": int(_KEEP_MARKS * NS),
        "allow_direct": True,
    }


def extent_of(info: dict[str, Any]) -> Extent:
    """What a stream holds, from the server's description of it."""
    state, config = info["state"], info["config"]
    held = state["messages"]
    return Extent(
        first=max(state["first_seq"], 1),
        last=state["last_seq"],
        identity=info["created"],
        mean_bytes=state["bytes"] / held if held else 0.0,
        is_queue=config.get("retention") == "workqueue",
        is_compacted=config.get("max_msgs_per_subject", -1) > 0,
    )


def allows_direct(info: dict[str, Any]) -> bool:
    """The server answers Direct Get for this stream."""
    return bool(info["config"].get("allow_direct"))


class NoDirectReadsError(FailedPreconditionError):
    """A stream of others, whose messages cannot be read past its consumers."""


def check_direct(topic: str, info: dict[str, Any]) -> None:
    """Raise when the server would answer no Direct Get for this stream."""
    if not allows_direct(info):
        raise NoDirectReadsError(
            f"Topic {topic!r} cannot be read directly; set allow_direct on its stream"
        )


def keeps_by_limits(info: dict[str, Any]) -> bool:
    """Consumers come and go without a trace: they change nothing about what is kept."""
    return bool(info["config"].get("retention") == "limits")


def topic_config(info: dict[str, Any]) -> TopicConfig:
    config = info["config"]
    marked = marked_by_us(config)
    work_queue = config.get("retention") == "workqueue"
    # What was asked for, as long as nobody has changed what became of it.
    retention, age = marked.get("retention"), config["max_age"]
    if retention is None or int(_kept_for(retention, work_queue) * NS) != age:
        retention = min(age / NS, 31 * DAY)
    duplicates, window = marked.get("duplicates"), config.get("duplicate_window", 0)
    if duplicates is None or int(_window(duplicates, age / NS) * NS) != window:
        duplicates = min(window / NS, DAY)
    return TopicConfig(
        name=own_name(config["name"]),
        message_retention=retention,
        duplicate_window=duplicates,
        routed_attributes=tuple(marked.get("routed", ())),
        replicas=config.get("num_replicas", 1),
        subjects=_subjects_of(config),
        work_queue=work_queue,
    )


def _subjects_of(config: dict[str, Any]) -> tuple[str, ...]:
    subjects = config.get("subjects") or []
    own = subjects == own_subjects(own_name(config["name"]))
    return () if own else tuple(subjects)


def marked_by_us(config: dict[str, Any]) -> dict[str, Any]:
    """What Penstock wrote down; nothing when somebody else made it."""
    text = (config.get("metadata") or {}).get(MARK)
    decoded: dict[str, Any] = msgspec.json.decode(text) if text else {}
    return decoded
